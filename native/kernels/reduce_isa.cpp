// The loops of reduce(), compiled once per instruction set with -DTAILCUT_ISA=<namespace> and the -m flags of
// that set.
//
// How a loop goes: a block of a few vectors is held in registers while all inputs are gone through in list
// order, then it is written. So k inputs cost one pass over memory and nothing intermediate is stored (beyond
// kGroup inputs: not beyond level-1 cache), and an output that is also an input is read before it is written.
//
// Why the bits do not depend on the instruction set: a lane only ever sees additions, products, comparisons
// and divisions of IEEE 754 in list order (-ffp-contract=off: no fused multiply-add); the conversions of
// 16-bit floats are exact or rounded once to nearest even; NaN results are made canonical; and the tail of a
// buffer goes through the same vector code, padded, so there is no second, scalar version to agree with.
//
// Vectors are gcc's vector types of exactly the width of the set: a wider type is torn into scalars or memory
// traffic, and the auto-vectoriser prefers 256 bits where 512 are asked for. Nothing from the standard
// library is called here and everything has internal linkage, since the linker may keep any copy of an inline
// function, also one of AVX-512.
#include "reduce_isa.hpp"

#if defined(__AVX__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns of its own headers: its bug 105593
#endif

#define TAILCUT_INLINE __attribute__((always_inline)) static inline

namespace tailcut::TAILCUT_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr size_t kWidth = 64;  // bytes of a vector
#elif defined(__AVX2__)
constexpr size_t kWidth = 32;
#else
constexpr size_t kWidth = 16;
#endif
constexpr size_t kBlock = 4;  // vectors of the output held in registers; 16-bit floats need two for each

// The CPU's prefetchers follow about this many inputs read side by side. When there are more, they are gone
// through in groups of this size, strip by strip, with the partial result of a strip kept in level-1 cache
// between groups.
constexpr size_t kGroup = 16;
constexpr size_t kStrip = 8192;  // bytes of an input; the partial result of 16-bit floats takes twice that

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kWidth)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

using Raw = Vector<unsigned char>;
using Words = Vector<uint32_t>;
using Floats = Vector<float>;

// ---- types of elements: how raw bytes become lanes to calculate in, and back ----

template <class T>
struct Unsigned {
  using type = T;
};
template <>
struct Unsigned<int32_t> {
  using type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
  using type = uint64_t;
};

template <class T, size_t N>
struct Lanes {
  Vector<T> part[N];
};

template <class T>
struct Plain {
  using Lane = T;
  static constexpr size_t kParts = 1;
  TAILCUT_INLINE Lanes<T, 1> widen(Raw raw) { return {{(Vector<T>)raw}}; }
  TAILCUT_INLINE Raw narrow(const Lanes<T, 1>& lanes) { return (Raw)lanes.part[0]; }
};

// A 32-bit word holds two elements: part 0 takes those in the low halves, part 1 those in the high halves.
// That needs no shuffles, and the order of lanes does not matter as long as narrow() puts them back.
struct BFloat16 {
  using Lane = float;
  static constexpr size_t kParts = 2;
  TAILCUT_INLINE Lanes<float, 2> widen(Raw raw) {
    const Words words = (Words)raw;
    return {{(Floats)(words << 16), (Floats)(words & 0xffff0000u)}};
  }
  TAILCUT_INLINE Words rounded(Floats value) {  // to nearest even; the canonical NaN passes unharmed
    const Words bits = (Words)value;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
  TAILCUT_INLINE Raw narrow(const Lanes<float, 2>& lanes) {
    return (Raw)((rounded(lanes.part[0]) >> 16) | (rounded(lanes.part[1]) & 0xffff0000u));
  }
};

#if defined(__F16C__)
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif

#if defined(__AVX512BW__) && defined(__F16C__)
struct Float16 {
  using Lane = float;
  static constexpr size_t kParts = 2;
  TAILCUT_INLINE Lanes<float, 2> widen(Raw raw) {
    const __m512i halves = (__m512i)raw;
    return {{(Floats)_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
             (Floats)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))}};
  }
  TAILCUT_INLINE Raw narrow(const Lanes<float, 2>& lanes) {
    const __m256i low = _mm512_cvtps_ph((__m512)lanes.part[0], kToNearest);
    const __m256i high = _mm512_cvtps_ph((__m512)lanes.part[1], kToNearest);
    return (Raw)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
};
#elif defined(__AVX2__) && defined(__F16C__)
struct Float16 {
  using Lane = float;
  static constexpr size_t kParts = 2;
  TAILCUT_INLINE Lanes<float, 2> widen(Raw raw) {
    const __m256i halves = (__m256i)raw;
    return {{(Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
             (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}};
  }
  TAILCUT_INLINE Raw narrow(const Lanes<float, 2>& lanes) {
    const __m128i low = _mm256_cvtps_ph((__m256)lanes.part[0], kToNearest);
    const __m128i high = _mm256_cvtps_ph((__m256)lanes.part[1], kToNearest);
    return (Raw)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
};
#else
// The same conversions by arithmetic on bits, for CPUs that have no instruction for them.
struct Float16 {
  using Lane = float;
  static constexpr size_t kParts = 2;

  TAILCUT_INLINE Floats widened(Words half) {  // 16 bits in the low half of each word, nothing above
    const Words magnitude = half & 0x7fffu;
    const Words sign = (half & 0x8000u) << 16;
    const Words normal = (magnitude << 13) + (112u << 23);  // bias 15 becomes bias 127
    const Words special = (magnitude << 13) | 0x7f800000u;  // Inf and NaN
    const Floats subnormal = __builtin_convertvector((Vector<int32_t>)magnitude, Floats) * 0x1p-24f;
    const Vector<int32_t> size = (Vector<int32_t>)magnitude;
    const Words bits = size >= 0x7c00 ? special : (size < 0x0400 ? (Words)subnormal : normal);
    return (Floats)(bits | sign);
  }
  // The float addition does the rounding: a power of two is added that leaves the 10 bits of a half (fewer
  // where the half is subnormal) at the end of the sum's fraction, so that the hardware rounds it to
  // nearest even.
  TAILCUT_INLINE Words narrowed(Floats value) {
    const Words bits = (Words)value;
    const Words magnitude = bits & 0x7fffffffu;
    const Vector<int32_t> size = (Vector<int32_t>)magnitude;
    const Words exponent = magnitude & 0x7f800000u;
    const Words lowest = Words{} + (113u << 23);  // 2^-14, the least normal half
    const Words scale = (size < (int32_t)(113u << 23) ? lowest : exponent) + (13u << 23);
    const Words sum = (Words)((Floats)magnitude + (Floats)scale);
    // sum - scale = the half's fraction with its leading bit, if it has one; the exponent goes above it.
    const Words finite = (sum - scale) + (((scale >> 23) - 126u) << 10);
    const Words special = size > 0x7f800000 ? Words{} + 0x7e00u : Words{} + 0x7c00u;  // NaN, else Inf
    const Words half = size >= 0x47800000 ? special : finite;  // from 2^16 on
    return half | ((bits >> 16) & 0x8000u);
  }
  TAILCUT_INLINE Lanes<float, 2> widen(Raw raw) {
    const Words words = (Words)raw;
    return {{widened(words & 0xffffu), widened(words >> 16)}};
  }
  TAILCUT_INLINE Raw narrow(const Lanes<float, 2>& lanes) {
    return (Raw)(narrowed(lanes.part[0]) | (narrowed(lanes.part[1]) << 16));
  }
};
#endif

// ---- operations on one vector ----

struct Sum {
  template <class T>
  TAILCUT_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    using U = typename Unsigned<T>::type;  // unsigned addition wraps by definition
    return (Vector<T>)((Vector<U>)a + (Vector<U>)b);
  }
};
struct Prod {
  template <class T>
  TAILCUT_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    using U = typename Unsigned<T>::type;
    return (Vector<T>)((Vector<U>)a * (Vector<U>)b);
  }
};
struct Min {
  template <class T>
  TAILCUT_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    return (b < a) | (b != b) ? b : a;  // a NaN in a stays: no comparison with it is true
  }
};
struct Max {
  template <class T>
  TAILCUT_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    return (b > a) | (b != b) ? b : a;
  }
};

// ---- the end of a lane: division, and one NaN for all ----

template <class T>
inline constexpr bool kIsFloat = T(1) / T(2) != T(0);

template <class T>
TAILCUT_INLINE T divided(T value, uint64_t divisor) {
  if constexpr (sizeof(T) < 8) {
    // Exact: a quotient of 32-bit integers is an integer or further from one than a double rounds.
    return (T)(int32_t)((double)value / (double)divisor);
  } else {
    const bool negative = value < 0;
    const uint64_t quotient = (negative ? 0 - (uint64_t)value : (uint64_t)value) / divisor;
    return (T)(negative ? 0 - quotient : quotient);
  }
}

template <class T, bool kDivide>
TAILCUT_INLINE Vector<T> finished(Vector<T> value, uint64_t divisor) {
  if constexpr (kIsFloat<T>) {
    if constexpr (kDivide) value = value / (Vector<T>{} + (T)divisor);
    const T nan = sizeof(T) == 4 ? (T)__builtin_nanf("") : (T)__builtin_nan("");
    return value == value ? value : Vector<T>{} + nan;
  } else if constexpr (kDivide) {
    T lanes[kWidth / sizeof(T)];
    __builtin_memcpy(lanes, &value, kWidth);
    for (T& lane : lanes) lane = divided<T>(lane, divisor);
    __builtin_memcpy(&value, lanes, kWidth);
    return value;
  } else {
    return value;
  }
}

// ---- the loop over a buffer ----

struct Inputs {
  const void* const* start;
  size_t count;
  size_t bytes;  // of each
};

template <class Element>
using LanesOf = Lanes<typename Element::Lane, Element::kParts>;

// Reduces `vectors` vectors at one offset of all inputs and writes the result to out; with kTail, the last
// piece of the buffers, less than one vector. `before` (or nullptr) is the partial result to start from
// instead of the first input; `after` (or nullptr) takes a partial result that is not to be finished yet.
template <class Element, class Op, bool kDivide, size_t vectors, bool kTail = false>
TAILCUT_INLINE void reduce_block(const Inputs& in, unsigned char* out, size_t at, uint64_t divisor,
                                 const LanesOf<Element>* before, LanesOf<Element>* after) {
  using T = typename Element::Lane;
  LanesOf<Element> total[vectors];
  const auto load = [&](size_t input, size_t vector) __attribute__((always_inline)) {
    Raw raw{};
    const auto* const start = static_cast<const unsigned char*>(in.start[input]) + at;
    __builtin_memcpy(&raw, start + vector * kWidth, kTail ? in.bytes - at : kWidth);
    return Element::widen(raw);
  };
#pragma GCC unroll 8
  for (size_t v = 0; v < vectors; ++v) total[v] = before != nullptr ? before[v] : load(0, v);
  for (size_t k = before != nullptr ? 0 : 1; k < in.count; ++k) {
#pragma GCC unroll 8
    for (size_t v = 0; v < vectors; ++v) {
      const auto next = load(k, v);
      for (size_t p = 0; p < Element::kParts; ++p) {
        total[v].part[p] = Op::template apply<T>(total[v].part[p], next.part[p]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t v = 0; v < vectors; ++v) {
    if (after != nullptr) {
      after[v] = total[v];
      continue;
    }
    for (size_t p = 0; p < Element::kParts; ++p) {
      total[v].part[p] = finished<T, kDivide>(total[v].part[p], divisor);
    }
    const Raw raw = Element::narrow(total[v]);
    __builtin_memcpy(out + at + v * kWidth, &raw, kTail ? in.bytes - at : kWidth);
  }
}

template <class Element, class Op, bool kDivide>
void reduce_all(const void* const* inputs, size_t n_inputs, void* output, size_t bytes, uint64_t divisor) {
  constexpr size_t kBytes = kBlock * kWidth;
  const Inputs in{inputs, n_inputs, bytes};
  unsigned char* const out = static_cast<unsigned char*>(output);
  LanesOf<Element> partial[kStrip / kWidth];  // untouched when there is one group
  size_t at = 0;
  while (bytes - at >= kBytes) {
    const size_t start = at;
    const size_t whole = (bytes - at) / kBytes * kBytes;
    const size_t end = at + (whole < kStrip ? whole : kStrip);
    for (size_t first = 0; first < n_inputs; first += kGroup) {
      const bool last = n_inputs - first <= kGroup;
      const Inputs group{inputs + first, last ? n_inputs - first : kGroup, bytes};
      LanesOf<Element>* place = partial;
      for (at = start; at < end; at += kBytes, place += kBlock) {
        LanesOf<Element>* const before = first == 0 ? nullptr : place;
        LanesOf<Element>* const after = last ? nullptr : place;
        reduce_block<Element, Op, kDivide, kBlock>(group, out, at, divisor, before, after);
      }
    }
  }
  for (; bytes - at >= kWidth; at += kWidth) {
    reduce_block<Element, Op, kDivide, 1>(in, out, at, divisor, nullptr, nullptr);
  }
  if (at < bytes) reduce_block<Element, Op, kDivide, 1, true>(in, out, at, divisor, nullptr, nullptr);
}

template <class Element, class Op>
ReduceLoop loop_for(bool divide) {
  return divide ? reduce_all<Element, Op, true> : reduce_all<Element, Op, false>;
}

template <class Element>
ReduceLoop loop_for(ReduceOp op, bool divide) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return loop_for<Element, Sum>(divide);
    case ReduceOp::kMin: return loop_for<Element, Min>(divide);
    case ReduceOp::kMax: return loop_for<Element, Max>(divide);
    case ReduceOp::kProd: return loop_for<Element, Prod>(divide);
  }
  return nullptr;
}

}  // namespace

ReduceLoop reduce_loop(DType dtype, ReduceOp op, bool divide) {
  switch (dtype) {
    case DType::kFloat32: return loop_for<Plain<float>>(op, divide);
    case DType::kFloat64: return loop_for<Plain<double>>(op, divide);
    case DType::kFloat16: return loop_for<Float16>(op, divide);
    case DType::kBFloat16: return loop_for<BFloat16>(op, divide);
    case DType::kInt32: return loop_for<Plain<int32_t>>(op, divide);
    case DType::kInt64: return loop_for<Plain<int64_t>>(op, divide);
    case DType::kUint8: return loop_for<Plain<uint8_t>>(op, divide);
  }
  return nullptr;
}

}  // namespace tailcut::TAILCUT_ISA
