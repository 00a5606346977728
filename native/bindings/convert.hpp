// Small conversions that several bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "engine/engine.hpp"

namespace tailcut {

namespace nb = nanobind;

// An array of the caller: any DLPack or buffer object on the CPU, C-contiguous.
struct Memory {
  const void* data;
  uint64_t bytes;
};

// Python's Part. The engine shares the Part itself, not this object: it releases Parts on its own thread, without the interpreter lock.
struct PartHandle {
  std::shared_ptr<const Part> part;
};

inline Memory readable(const nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>& array) {
  return {array.data(), static_cast<uint64_t>(array.size()) * (array.dtype().bits / 8)};
}

inline const char* error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNone: return "none";
    case ErrorCode::kPeerDead: return "peer_dead";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kClosed: return "closed";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kGone: return "gone";
  }
  return "unknown";
}

inline nb::dict to_dict(const Fingerprint& print) {
  nb::dict out;
  out["collective"] = print.collective;
  out["dtype"] = print.dtype;
  out["op"] = print.op;
  out["family"] = print.family;
  out["count"] = print.count;
  return out;
}

inline nb::dict to_dict(const Result& result) {
  nb::dict out;
  out["ticket"] = result.ticket;
  out["code"] = error_name(result.code);
  out["culprits"] = nb::cast(result.culprits);
  out["waiting"] = nb::cast(result.waiting);
  out["reporter"] = result.reporter == kNoRank ? -1 : static_cast<int>(result.reporter);
  out["stage"] = result.stage;
  out["elapsed_ns"] = result.elapsed;
  out["received_bytes"] = result.received_bytes;
  out["expected_bytes"] = result.expected_bytes;
  out["resent_packets"] = result.resent_packets;
  out["ours"] = to_dict(result.ours);
  out["theirs"] = to_dict(result.theirs);
  nb::list lags;
  for (const Time lag : result.lags) {
    if (lag == kNever) {
      lags.append(nb::none());
    } else {
      lags.append(lag);
    }
  }
  out["lags_ns"] = lags;
  return out;
}

inline nb::dict to_dict(const Counters& counters) {
  nb::dict out;
#define TAILCUT_ITEM(name, text) out[#name] = counters.name;
  TAILCUT_COUNTERS(TAILCUT_ITEM)
#undef TAILCUT_ITEM
  return out;
}

inline nb::dict to_dict(const Peer& peer) {
  nb::dict out;
  out["local"] = peer.local;
  out["srtt_ns"] = peer.control.srtt();
  out["loop_ns"] = peer.control.loop();
  out["min_rtt_ns"] = peer.control.min_rtt();
  out["queue_delay_ns"] = peer.control.queue_delay();
  out["window_packets"] = peer.control.window_packets();
  out["contending"] = peer.control.contending();
  out["bytes_per_second"] = peer.control.bytes_per_second();
  out["in_flight"] = peer.in_flight();
  out["packets_sent"] = peer.sent;
  out["packets_received"] = peer.received;
  out["packets_lost"] = peer.packets_lost;
  out["bytes_sent"] = peer.bytes_sent;
  out["bytes_received"] = peer.bytes_received;
  out["heard_at_ns"] = peer.heard_at;
  out["closed"] = peer.closed;
  return out;
}

// Options by name; unknown names are refused.
inline Options options_from(const nb::dict& given) {
  Options options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    const auto number = nb::cast<int64_t>(value);
    if (number < 0) throw std::invalid_argument("option " + name + " must not be negative");
    if (name == "liveness_ns") options.liveness = number;
    else if (name == "eager_bytes") options.eager_bytes = static_cast<uint64_t>(number);
    else if (name == "stash_bytes") options.stash_bytes = static_cast<uint64_t>(number);
    else if (name == "retained_bytes") options.retained_bytes = static_cast<uint64_t>(number);
    else if (name == "receive_bytes") options.receive_bytes = static_cast<uint64_t>(number);
    else if (name == "delay_target_ns") options.delay_target = number;
    else if (name == "stranger_delay_ns") options.stranger_delay = number;
    else if (name == "port_target_ns") options.port_target = number;
    else if (name == "report_delay_ns") options.report_delay = number;
    else if (name == "report_every") options.report_every = static_cast<uint32_t>(number);
    else if (name == "incast") options.incast = static_cast<uint32_t>(number);
    else if (name == "burst_bytes") options.burst_bytes = static_cast<uint32_t>(number);
    else if (name == "max_window_packets") options.max_window_packets = static_cast<uint32_t>(number);
    else throw std::invalid_argument("unknown option " + name);
  }
  if (options.liveness < kMillisecond || options.burst_bytes < 1500) throw std::invalid_argument("liveness or burst too small");
  return options;
}

Fingerprint print_from(int collective, int dtype, int op, int family, uint64_t count);

}  // namespace tailcut
