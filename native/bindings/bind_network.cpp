// Binds the virtual network for tests and simulation.
#include "bindings/convert.hpp"
#include "sim/network.hpp"

namespace tailcut {

namespace {

NetworkConfig network_config(const nb::dict& given) {
  NetworkConfig config;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    const double number = nb::cast<double>(value);
    if (name == "seed") config.seed = nb::cast<uint64_t>(value);
    else if (name == "latency_ns") config.latency = static_cast<Time>(number);
    else if (name == "jitter_ns") config.jitter = static_cast<Time>(number);
    else if (name == "loss") config.loss = number;
    else if (name == "duplicate") config.duplicate = number;
    else if (name == "corrupt") config.corrupt = number;
    else if (name == "flip_payload") config.flip_payload = number;
    else if (name == "burst_gap_ns") config.burst_gap = static_cast<Time>(number);
    else if (name == "burst_ns") config.burst_length = static_cast<Time>(number);
    else if (name == "rate") config.rate = number;
    else if (name == "queue_bytes") config.queue_bytes = static_cast<uint64_t>(number);
    else throw std::invalid_argument("unknown setting " + name);
  }
  return config;
}

using Input = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;
using Output = nb::ndarray<nb::device::cpu, nb::c_contig>;

uint64_t start(Network& self, Rank rank, const PartHandle& handle, uint16_t tag, uint32_t sequence, int collective, int dtype, int op,
               uint64_t count, int family, const Input& input, const Output& output, Time timeout) {
  const std::shared_ptr<const Part>& part = handle.part;
  if (readable(input).bytes != part->input_bytes || output.size() * (output.dtype().bits / 8) != part->output_bytes) {
    throw std::invalid_argument("the arrays do not fit the Plan");
  }
  return self.start(rank, part, OpKey{tag, sequence}, print_from(collective, dtype, op, family, count), input.data(), output.data(), timeout);
}

nb::list captured(Network& self) {
  nb::list out;
  for (const auto& [at, from, to, bytes] : self.take_captured()) out.append(nb::make_tuple(at, from, to, nb::bytes(bytes.data(), bytes.size())));
  return out;
}

}  // namespace

void bind_network(nb::module_& module) {
  nb::class_<Network>(module, "Network", "n engines over a network in virtual time; same seed, same run.")
      .def("__init__",
           [](Network* self, uint32_t size, uint32_t payload, const nb::dict& options, const nb::dict& config) {
             new (self) Network(size, payload, options_from(options), network_config(config));
           },
           nb::arg("size"), nb::arg("payload"), nb::arg("options"), nb::arg("config"))
      .def("start", &start, nb::arg("rank"), nb::arg("part"), nb::arg("tag"), nb::arg("sequence"), nb::arg("collective"), nb::arg("dtype"),
           nb::arg("op"), nb::arg("count"), nb::arg("family"), nb::arg("input"), nb::arg("output"), nb::arg("timeout_ns"))
      .def("cancel", &Network::cancel, nb::arg("rank"), nb::arg("ticket"))
      .def("leave", &Network::leave, nb::arg("rank"))
      .def("run", &Network::run, nb::arg("until_ns"), nb::call_guard<nb::gil_scoped_release>())
      .def("results",
           [](Network& self, Rank rank) {
             nb::list out;
             for (const Result& result : self.results(rank)) out.append(to_dict(result));
             return out;
           },
           nb::arg("rank"))
      .def("kill", &Network::kill, nb::arg("rank"))
      .def("pause", &Network::pause, nb::arg("rank"), nb::arg("duration_ns"))
      .def("cut", &Network::cut, nb::arg("source"), nb::arg("target"), nb::arg("open"))
      .def("set_loss", &Network::set_loss, nb::arg("loss"))
      .def("set_path_loss", &Network::set_path_loss, nb::arg("source"), nb::arg("target"), nb::arg("loss"))
      .def("capture", &Network::capture, nb::arg("on"))
      .def("take_captured", &captured, "What was sent while capturing: (time in ns, source, target, datagram) each.")
      .def("inject",
           [](Network& self, Rank to, Rank from, const nb::bytes& datagram) {
             const auto* data = reinterpret_cast<const uint8_t*>(datagram.c_str());
             self.inject(to, from, {data, data + datagram.size()});
           },
           nb::arg("to"), nb::arg("source"), nb::arg("datagram"))
      .def("counters", [](Network& self, Rank rank) { return to_dict(self.engine(rank).counters()); }, nb::arg("rank"))
      .def("peer", [](Network& self, Rank rank, Rank peer) { return to_dict(self.engine(rank).peer(peer)); }, nb::arg("rank"), nb::arg("peer"))
      .def("idle", [](Network& self, Rank rank) { return self.engine(rank).idle(); }, nb::arg("rank"))
      .def("retained_bytes", [](Network& self, Rank rank) { return self.engine(rank).retained_bytes(); }, nb::arg("rank"))
      .def_prop_ro("now_ns", &Network::now)
      .def_prop_ro("digest", &Network::digest)
      .def_prop_ro("delivered", &Network::delivered)
      .def_prop_ro("dropped_queue", &Network::dropped_queue)
      .def_prop_ro("dropped_loss", &Network::dropped_loss)
      .def_prop_ro("dropped_data", &Network::dropped_data)
      .def_prop_ro("duplicated", &Network::duplicated)
      .def_prop_ro("flipped", &Network::flipped);
}

}  // namespace tailcut
