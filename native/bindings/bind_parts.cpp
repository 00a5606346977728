// Binds Part: Plans come from Python as tuples and are checked once, here.
#include "bindings/convert.hpp"
#include "kernels/reduce.hpp"

namespace tailcut {

namespace {

Buffer buffer_from(int code) {
  if (code < 0 || code > 2) throw std::invalid_argument("unknown buffer");
  return static_cast<Buffer>(code);
}

Step step_from(const nb::tuple& given) {
  Step step;
  const int kind = nb::cast<int>(given[0]);
  if (kind == 0 || kind == 1) {
    step.kind = kind == 0 ? StepKind::kSend : StepKind::kRecv;
    step.peer = nb::cast<Rank>(given[1]);
    step.transfer = nb::cast<uint16_t>(given[2]);
    step.stage = nb::cast<uint8_t>(given[3]);
    step.region = {buffer_from(nb::cast<int>(given[4])), nb::cast<uint64_t>(given[5]), nb::cast<uint64_t>(given[6])};
    if (kind == 0) {
      step.retain = nb::cast<bool>(given[7]);
      step.after = nb::cast<std::vector<uint32_t>>(given[8]);
    }
    return step;
  }
  if (kind != 2) throw std::invalid_argument("unknown kind of step");
  step.kind = StepKind::kCombine;
  step.stage = nb::cast<uint8_t>(given[1]);
  step.final = nb::cast<bool>(given[2]);
  step.region = {buffer_from(nb::cast<int>(given[3])), nb::cast<uint64_t>(given[4]), nb::cast<uint64_t>(given[5])};
  for (const auto& input : nb::cast<nb::tuple>(given[6])) {
    const auto pair = nb::cast<nb::tuple>(input);
    step.inputs.push_back({buffer_from(nb::cast<int>(pair[0])), nb::cast<uint64_t>(pair[1]), step.region.length});
  }
  step.after = nb::cast<std::vector<uint32_t>>(given[7]);
  return step;
}

}  // namespace

Fingerprint print_from(int collective, int dtype, int op, int family, uint64_t count) {
  if (dtype < 0 || dtype >= static_cast<int>(kDTypes) || op < 0 || op >= static_cast<int>(kReduceOps) || collective < 0 ||
      collective > 255 || family < 0 || family > 255) {
    throw std::invalid_argument("unknown collective, dtype, op or family");
  }
  return {static_cast<uint8_t>(collective), static_cast<uint8_t>(dtype), static_cast<uint8_t>(op), static_cast<uint8_t>(family), 0, count};
}

void bind_parts(nb::module_& module) {
  nb::class_<PartHandle>(module, "Part", "One rank's part of a Plan in native form; immutable, shared between operations.")
      .def("__init__",
           [](PartHandle* self, uint32_t size, Rank rank, uint64_t input_bytes, uint64_t output_bytes, uint64_t stage_bytes, uint32_t itemsize,
              const nb::sequence& steps) {
             std::vector<Step> list;
             for (const auto& step : steps) list.push_back(step_from(nb::cast<nb::tuple>(step)));
             new (self) PartHandle{
                 std::make_shared<const Part>(size, rank, input_bytes, output_bytes, stage_bytes, itemsize, std::move(list))};
           },
           nb::arg("size"), nb::arg("rank"), nb::arg("input_bytes"), nb::arg("output_bytes"), nb::arg("stage_bytes"), nb::arg("itemsize"),
           nb::arg("steps"))
      .def_prop_ro("size", [](const PartHandle& self) { return self.part->size; })
      .def_prop_ro("rank", [](const PartHandle& self) { return self.part->rank; })
      .def_prop_ro("input_bytes", [](const PartHandle& self) { return self.part->input_bytes; })
      .def_prop_ro("output_bytes", [](const PartHandle& self) { return self.part->output_bytes; })
      .def_prop_ro("stage_bytes", [](const PartHandle& self) { return self.part->stage_bytes; });
}

}  // namespace tailcut
