// Sums, products, minima and maxima of whole buffers, in rank order and bit-identical on every CPU.
//
// The same machine reduces some shards and other machines reduce the rest, and in small operations every rank
// reduces everything for itself: a result must not depend on the instruction set, on the length of the piece
// a call happened to get, nor on the floating-point mode the calling thread happens to be in. See
// reduce_isa.cpp for how.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tailcut {

// The numbers are those of src/tailcut/types.py; they travel between Python and native code, and on the wire.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
};
enum class ReduceOp : uint8_t { kSum = 0, kAvg = 1, kMin = 2, kMax = 3, kProd = 4 };

inline constexpr unsigned kDTypes = 7;
inline constexpr unsigned kReduceOps = 5;

// Bytes of one element.
size_t itemsize(DType dtype);

// out[i] = in[0][i] op in[1][i] op ... strictly in list order; n_inputs is at least 1, count is in elements.
//   divisor   0: none; else the value is divided by it at the end (AVG adds like SUM: pass 0 unless final).
//   16 bits   float16 and bfloat16 accumulate in float32 and are rounded once, after the division.
//   integers  wrap; the division truncates toward zero, like C.
//   min, max  NaN if any input is NaN; of two equal values (+0 and -0) the earlier one stays.
//   NaN       a result that is NaN is always the positive quiet NaN without payload: which payload survives
//             an addition depends on the order of operands in the machine code, so CPUs would differ.
//   one input the bytes are copied unchanged when there is no divisor.
// out may be the same memory as one of the inputs, but must not overlap any input in another way. Pointers
// need no alignment. Rounding is to nearest even and subnormals are kept, on x86 whatever the mode of the
// calling thread.
void reduce(DType dtype, ReduceOp op, const void* const* inputs, size_t n_inputs, void* out, size_t count,
            uint64_t divisor);

// The instruction set in use: "sse2", "avx2", "avx512", or "generic" where the CPU is not an x86.
const char* reduce_isa();

// All that this CPU can run, from the narrowest to the widest: writes at most `room` names, returns how many
// there are.
size_t reduce_isas(const char** names, size_t room);

// For tests: use that instruction set from now on in the whole process; nullptr goes back to the widest.
// Returns false, and changes nothing, when this CPU or this build has no such set. Safe beside running
// reductions.
bool force_reduce_isa(const char* name);

}  // namespace tailcut
