// What reduce.cpp and the copies of reduce_isa.cpp share. Declarations only: an inline function here could be
// emitted by the AVX-512 copy and be the one the linker keeps, and then a CPU without AVX-512 would run it.
#pragma once

#include "reduce.hpp"

namespace tailcut {

// Like reduce(), for one type and operation; `bytes` is the length of each buffer.
using ReduceLoop = void (*)(const void* const* inputs, size_t n_inputs, void* out, size_t bytes,
                            uint64_t divisor);

// Each copy: the loop for a type and an operation; `divide`: the divisor is not 0. Returns nullptr for
// unknown codes.
#if defined(__x86_64__)
namespace isa_sse2 {
ReduceLoop reduce_loop(DType dtype, ReduceOp op, bool divide);
}
namespace isa_avx2 {
ReduceLoop reduce_loop(DType dtype, ReduceOp op, bool divide);
}
namespace isa_avx512 {
ReduceLoop reduce_loop(DType dtype, ReduceOp op, bool divide);
}
#else
namespace isa_generic {
ReduceLoop reduce_loop(DType dtype, ReduceOp op, bool divide);
}
#endif

}  // namespace tailcut
