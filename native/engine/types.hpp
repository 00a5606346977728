// Units and small types that the whole engine shares. No I/O, no clock: time is always an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace tailcut {

using Time = int64_t;  // nanoseconds; the origin is the caller's business
constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr Time kMicrosecond = 1'000;
constexpr Time kMillisecond = 1'000'000;
constexpr Time kSecond = 1'000'000'000;

using Rank = uint16_t;
constexpr Rank kNoRank = 0xFFFF;

// One operation of a group: the caller's tag and the sequence number within that tag.
struct OpKey {
  uint16_t tag = 0;
  uint32_t sequence = 0;
  bool operator==(const OpKey&) const = default;
  uint64_t packed() const { return (uint64_t{tag} << 32) | sequence; }
};

// What a rank says it wants from an operation. All ranks must say the same; a difference ends the operation.
struct Fingerprint {
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t family = 0;
  uint32_t root = 0;  // reserved: 0 for the symmetric collectives
  uint64_t count = 0;  // elements
  bool operator==(const Fingerprint&) const = default;
};

enum class ErrorCode : uint8_t {
  kNone = 0,
  kPeerDead = 1,   // silent for longer than liveness
  kMismatch = 2,   // ranks called different operations
  kTimeout = 3,    // the operation's own timeout
  kClosed = 4,     // a rank left the group, or this one did
  kCancelled = 5,  // the caller gave the operation up
  kGone = 6,       // a peer no longer has data we need; a defect if it ever happens
};

// Everything a caller may set. Defaults suit plain Ethernet; the Python side documents each field.
struct Options {
  Time liveness = 5 * kSecond;
  uint64_t eager_bytes = 64 * 1024;
  uint64_t stash_bytes = 16 << 20;
  uint64_t retained_bytes = 256 << 20;
  uint64_t receive_bytes = 100 * 1024;  // payload bytes the receive socket holds without loss
  Time delay_target = 8 * kMillisecond;  // queueing delay that all our flows together may cause at a port
  Time stranger_delay = 8 * kMillisecond;  // a queue that stays longer than this is not ours: contend for our share
  Time port_target = 2 * kMillisecond;   // queueing delay our own flows may cause at our own port
  Time report_delay = 3 * kMillisecond;  // the longest a received packet stays unreported
  uint32_t report_every = 32;            // packets after which a report is due at once
  uint32_t burst_bytes = 64 * 1024;      // the most one batch carries
  uint32_t incast = 8;                   // unfinished sends of an operation that are served side by side
  uint32_t max_window_packets = 16384;   // the path sequence is 16 bits: stay well under half of it
};

}  // namespace tailcut
