// The Python module tailcut._native: binds the engine, the driver, the kernels and the virtual network.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace tailcut {
void bind_parts(nb::module_& module);
void bind_endpoint(nb::module_& module);
void bind_network(nb::module_& module);
void bind_kernels(nb::module_& module);
}  // namespace tailcut

NB_MODULE(_native, module) {
  module.doc() = "The native part of tailcut: protocol engine, UDP driver, reduction kernels, virtual network.";
  tailcut::bind_parts(module);
  tailcut::bind_endpoint(module);
  tailcut::bind_network(module);
  tailcut::bind_kernels(module);
}
