// The Python module tailcut._native: binds the engine, the driver and the kernels.
#include <nanobind/nanobind.h>

NB_MODULE(_native, module) {
    module.doc() = "The native part of tailcut.";
}
