// The kernels for Python: tests and benchmarks call them, the engine never does so through here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reduce.hpp"

namespace nb = nanobind;

namespace tailcut {
namespace {

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::c_contig, nb::device::cpu>;

// Only equal memory or no common byte is allowed.
bool overlaps_in_part(const void* input, const void* output, size_t bytes) {
  const auto a = reinterpret_cast<uintptr_t>(input);
  const auto b = reinterpret_cast<uintptr_t>(output);
  return a != b && a < b + bytes && b < a + bytes;
}

// Arrays count as bytes: numpy has no bfloat16, and a view as uint8 may start at any address.
void reduce_arrays(unsigned dtype, unsigned op, const std::vector<Input>& inputs, const Output& output,
                   uint64_t divisor) {
  if (dtype >= kDTypes) throw nb::value_error("no such dtype");
  if (op >= kReduceOps) throw nb::value_error("no such operation");
  if (inputs.empty()) throw nb::value_error("there must be at least one input");
  const DType type = static_cast<DType>(dtype);
  const size_t bytes = output.nbytes();
  if (bytes % itemsize(type) != 0) throw nb::value_error("output does not hold whole elements");
  std::vector<const void*> pointers;
  for (const Input& input : inputs) {
    if (input.nbytes() != bytes) throw nb::value_error("inputs and output must have the same length");
    if (overlaps_in_part(input.data(), output.data(), bytes)) {
      throw nb::value_error("output overlaps an input without being the same memory");
    }
    pointers.push_back(input.data());
  }
  const size_t count = bytes / itemsize(type);
  nb::gil_scoped_release release;
  reduce(type, static_cast<ReduceOp>(op), pointers.data(), pointers.size(), output.data(), count, divisor);
}

std::vector<std::string> isas() {
  const char* names[4];
  const size_t found = reduce_isas(names, 4);
  return std::vector<std::string>(names, names + (found < 4 ? found : 4));
}

void force(const std::optional<std::string>& name) {
  if (!force_reduce_isa(name ? name->c_str() : nullptr)) {
    throw nb::value_error("this CPU or this build has no such instruction set");
  }
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("reduce", reduce_arrays, nb::arg("dtype"), nb::arg("op"), nb::arg("inputs").noconvert(),
        nb::arg("output").noconvert(), nb::arg("divisor") = 0,
        "output = inputs[0] op inputs[1] op ... in list order, divided by divisor if that is not 0.\n"
        "Arrays are taken as bytes of the dtype; output may be the same memory as one input.");
  m.def("reduce_isa", reduce_isa, "The instruction set of the kernels in use.");
  m.def("reduce_isas", isas, "All that this CPU can run, from the narrowest to the widest.");
  m.def("force_reduce_isa", force, nb::arg("name").none(),
        "For tests: use that set from now on, in the whole process; None goes back to the widest.");
}

}  // namespace tailcut
