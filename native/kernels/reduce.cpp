// Chooses the instruction set once per process and guards what the loops rely on.
#include "reduce.hpp"

#include <atomic>
#include <cstring>

#include "reduce_isa.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tailcut {
namespace {

using PickLoop = ReduceLoop (*)(DType, ReduceOp, bool);

struct Isa {
  const char* name;
  PickLoop pick;
  bool (*runs_here)();
};

#if defined(__x86_64__)

// The checks name all that gcc may use under the flags of the build; F16C and FMA are no part of AVX2.
bool has_sse2() { return true; }
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// From the narrowest to the widest.
constexpr Isa kIsas[] = {
  {"sse2", isa_sse2::reduce_loop, has_sse2},
  {"avx2", isa_avx2::reduce_loop, has_avx2},
  {"avx512", isa_avx512::reduce_loop, has_avx512},
};

// Sets round-to-nearest and keeps subnormals for the time of a reduction. The driver thread and a caller that
// drives the engine itself (perhaps after torch.set_flush_denormal) must get the same bits.
class FloatMode {
 public:
  FloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static constexpr unsigned kFlags = 0x3f;      // what happened so far: not a mode
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, to nearest, neither FTZ nor DAZ
  unsigned saved_;
};

#else

bool has_generic() { return true; }
constexpr Isa kIsas[] = {{"generic", isa_generic::reduce_loop, has_generic}};

struct FloatMode {
  FloatMode() {}  // not empty by default, so that the guard does not look unused
};

#endif

const Isa* widest() {
  const Isa* best = &kIsas[0];
  for (const Isa& isa : kIsas) {
    if (isa.runs_here()) best = &isa;
  }
  return best;
}

std::atomic<const Isa*>& in_use() {
  static std::atomic<const Isa*> isa{widest()};
  return isa;
}

}  // namespace

size_t itemsize(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kUint8: return 1;
  }
  return 0;
}

void reduce(DType dtype, ReduceOp op, const void* const* inputs, size_t n_inputs, void* out, size_t count,
            uint64_t divisor) {
  const size_t bytes = count * itemsize(dtype);
  if (n_inputs == 0 || bytes == 0) return;
  if (n_inputs == 1 && divisor == 0) {
    if (out != inputs[0]) std::memmove(out, inputs[0], bytes);
    return;
  }
  const ReduceLoop loop = in_use().load(std::memory_order_relaxed)->pick(dtype, op, divisor != 0);
  if (loop == nullptr) return;
  const FloatMode mode;
  loop(inputs, n_inputs, out, bytes, divisor);
}

const char* reduce_isa() { return in_use().load(std::memory_order_relaxed)->name; }

size_t reduce_isas(const char** names, size_t room) {
  size_t found = 0;
  for (const Isa& isa : kIsas) {
    if (!isa.runs_here()) continue;
    if (found < room) names[found] = isa.name;
    ++found;
  }
  return found;
}

bool force_reduce_isa(const char* name) {
  if (name == nullptr) {
    in_use().store(widest(), std::memory_order_relaxed);
    return true;
  }
  for (const Isa& isa : kIsas) {
    if (std::strcmp(isa.name, name) == 0 && isa.runs_here()) {
      in_use().store(&isa, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace tailcut
