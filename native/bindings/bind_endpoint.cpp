// Binds the driver. The interpreter lock is never held while native code waits.
#include "bindings/convert.hpp"
#include "udp/endpoint.hpp"

namespace tailcut {

namespace {

using Input = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;
using Output = nb::ndarray<nb::device::cpu, nb::c_contig>;

// Runs without the lock; takes the interpreter's to let Ctrl-C and other signal handlers through.
void look_at_signals() {
  nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// What Python holds of an operation. Dropping it while the operation runs cancels it first: the fence on the caller's memory.
class PendingOperation {
 public:
  PendingOperation(std::shared_ptr<Channel> channel, std::shared_ptr<Completion> completion, uint64_t ticket)
      : channel_(std::move(channel)), completion_(std::move(completion)), ticket_(ticket) {}
  ~PendingOperation() {
    nb::gil_scoped_release release;
    if (!done()) channel_->cancel(ticket_);
  }
  bool done() const { return completion_->done; }
  bool wait(Time timeout) {
    nb::gil_scoped_release release;
    return channel_->wait(*completion_, timeout, look_at_signals);
  }
  void cancel() {
    nb::gil_scoped_release release;
    channel_->cancel(ticket_);
  }
  nb::object result() const {
    if (!done()) return nb::none();
    return to_dict(completion_->result);
  }
  bool ok() const { return done() && completion_->result.code == ErrorCode::kNone; }

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Completion> completion_;
  uint64_t ticket_;
};

nb::dict features_of(const Endpoint& endpoint) {
  const Features& features = endpoint.features();
  nb::dict out;
  out["gso"] = features.gso;
  out["gro"] = features.gro;
  out["timestamps"] = features.timestamps;
  out["drop_counts"] = features.drop_counts;
  out["receive_buffer"] = features.receive_buffer;
  out["send_buffer"] = features.send_buffer;
  return out;
}

PendingOperation* start(const std::shared_ptr<Channel>& channel, const PartHandle& handle, uint16_t tag, uint32_t sequence, int collective,
                  int dtype, int op, uint64_t count, int family, const Input& input, const Output& output, Time timeout) {
  const std::shared_ptr<const Part>& part = handle.part;
  const Memory in = readable(input);
  const uint64_t out_bytes = static_cast<uint64_t>(output.size()) * (output.dtype().bits / 8);
  if (in.bytes != part->input_bytes || out_bytes != part->output_bytes) {
    throw std::invalid_argument("the arrays hold " + std::to_string(in.bytes) + " and " + std::to_string(out_bytes) + " bytes, the Plan " +
                                std::to_string(part->input_bytes) + " and " + std::to_string(part->output_bytes));
  }
  const Fingerprint print = print_from(collective, dtype, op, family, count);
  uint64_t ticket = 0;
  std::shared_ptr<Completion> completion;
  {
    nb::gil_scoped_release release;
    completion = channel->start(part, OpKey{tag, sequence}, print, in.data, output.data(), timeout, ticket);
  }
  return new PendingOperation(channel, std::move(completion), ticket);
}

// Plain values are copied under the endpoint's mutex; Python objects are made after it, for making one may run any destructor.
nb::dict counters_of(Channel& channel) {
  return to_dict(channel.inspect([](Engine* engine, uint64_t foreign) {
    Counters counters = engine ? engine->counters() : Counters{};
    counters.dropped_foreign += foreign;
    return counters;
  }));
}

nb::list peers_of(Channel& channel) {
  const auto peers = channel.inspect([](Engine* engine, uint64_t) {
    std::vector<Peer> copies;
    for (Rank rank = 0; engine != nullptr && rank < engine->size(); ++rank) copies.push_back(engine->peer(rank));
    return copies;
  });
  nb::list out;
  for (const Peer& peer : peers) out.append(to_dict(peer));
  return out;
}

nb::object failed_of(Channel& channel) {
  const auto failed = channel.inspect([](Engine* engine, uint64_t) { return engine ? engine->failed() : std::optional<Result>{}; });
  if (!failed) return nb::none();
  return to_dict(*failed);
}

std::shared_ptr<Channel> open(const std::shared_ptr<Endpoint>& endpoint, uint32_t group, Rank rank,
                              const std::vector<std::tuple<std::string, uint16_t>>& peers, const nb::dict& options) {
  std::vector<Address> addresses;
  for (const auto& [host, port] : peers) addresses.push_back(Address::parse(host, port));
  return std::make_shared<Channel>(endpoint, group, rank, std::move(addresses), options_from(options));
}

void bind_channel(nb::module_& module) {
  nb::class_<Channel>(module, "Channel", "One group on an endpoint.")
      .def("probe",
           [](Channel& self, const std::vector<uint32_t>& sizes, Time timeout) {
             nb::gil_scoped_release release;
             return self.probe(sizes, timeout, look_at_signals);
           },
           nb::arg("sizes"), nb::arg("timeout_ns"), "Per peer the longest datagram it confirmed, 0 if none.")
      .def("set_payload", &Channel::set_payload, nb::arg("datagram_bytes"))
      .def("start", &start, nb::arg("part"), nb::arg("tag"), nb::arg("sequence"), nb::arg("collective"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("count"), nb::arg("family"), nb::arg("input"), nb::arg("output"), nb::arg("timeout_ns"))
      .def("counters", &counters_of)
      .def("peers", &peers_of)
      .def_prop_ro("failed", &failed_of)
      .def("retained_bytes",
           [](Channel& self) { return self.inspect([](Engine* engine, uint64_t) { return engine ? engine->retained_bytes() : 0; }); })
      .def("close",
           [](Channel& self, Time linger) {
             nb::gil_scoped_release release;
             return self.close(linger, look_at_signals);
           },
           nb::arg("linger_ns"), "Stays until peers have what they may ask for, at most so long; true if so.");
}

}  // namespace

void bind_endpoint(nb::module_& module) {
  nb::class_<PendingOperation>(module, "Operation", "An operation in flight.")
      .def_prop_ro("done", &PendingOperation::done)
      .def_prop_ro("ok", &PendingOperation::ok)
      .def("wait", &PendingOperation::wait, nb::arg("timeout_ns") = -1)
      .def("cancel", &PendingOperation::cancel)
      .def("result", &PendingOperation::result, "How it ended, as a dict; None while it runs.");
  bind_channel(module);
  nb::class_<Endpoint>(module, "Endpoint", "One UDP socket and its driver thread.")
      .def("__init__",
           [](Endpoint* self, const std::string& host, uint16_t port, uint64_t receive_buffer, bool offload) {
             new (self) Endpoint(host, port, receive_buffer, offload);
           },
           nb::arg("host"), nb::arg("port") = 0, nb::kw_only(), nb::arg("receive_buffer") = 0, nb::arg("offload") = true)
      .def_prop_ro("address", [](const Endpoint& self) { return std::make_tuple(self.address().host(), self.address().port()); })
      .def_prop_ro("features", &features_of)
      .def_prop_ro("unclaimed", &Endpoint::unclaimed, "Datagrams that belonged to no open group.")
      .def("open", &open, nb::arg("group"), nb::arg("rank"), nb::arg("peers"), nb::arg("options"))
      .def("close", [](Endpoint& self) {
        nb::gil_scoped_release release;
        self.close();
      });
}

}  // namespace tailcut
