// The wire format: a 24-byte header in front of everything, little-endian, and the bodies of the control packets.
// docs/reference/wire.md describes it for readers; a change here needs a new kVersion.
#pragma once

#include <bit>
#include <cstring>

#include "engine/types.hpp"

namespace tailcut {

static_assert(std::endian::native == std::endian::little, "tailcut's wire code is written for little-endian hosts");

constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = 24;
constexpr size_t kPathAt = 22;              // where a header holds the path sequence
constexpr size_t kTagBytes = 16;            // room for an authentication tag; not yet in use
constexpr size_t kControlBytes = 1100;      // control packets fit any path that IPv6 allows
constexpr uint32_t kMaxPackets = 1u << 24;  // packets of one transfer: the offset field has 24 bits

enum class Kind : uint8_t {
  kData = 1,      // payload of a transfer
  kEnter = 2,     // "I have entered this operation, with this fingerprint": also the grant to send to me
  kReport = 3,    // what I received from you and what is missing; answers pings
  kPing = 4,      // "are you there, and what have you got of these transfers?"
  kFail = 5,      // an operation or the group has failed
  kBye = 6,       // I am leaving the group
  kProbe = 7,     // full-size probe before the first operation
  kProbeAck = 8,  // its answer
};

enum DataFlag : uint8_t {
  kLastPart = 1,   // within the last 1 % of a transfer (the early timeout of bounded mode looks at it)
  kRepair = 2,     // sent again because the receiver reported it missing
  kReportNow = 4,  // the sender's window is full or its data at an end: report at once
};

enum PingFlag : uint8_t { kPathCounts = 1 };  // the header's path sequence is that of the newest data packet

struct Header {
  Kind kind = Kind::kData;
  uint8_t flags = 0;    // 4 bits
  uint8_t incast = 0;   // 4 bits: senders the receiver allows at once (bounded mode)
  Rank source = 0;
  uint32_t group = 0;   // hash of the group's nonce: packets of old epochs differ here
  OpKey key;
  uint16_t transfer = 0;
  uint32_t offset = 0;  // 24 bits: packet index within the transfer
  uint8_t timeout = 0;  // logarithmic code of the sender's stage time (bounded mode)
  uint16_t stamp = 0;   // sender's clock, kStampUnit per tick
  uint16_t path = 0;    // counts data packets from this sender to this receiver: gaps are losses
};

constexpr Time kStampUnit = 8 * kMicrosecond;  // 16 bits wrap after 0.52 s, more than any sane round trip

template <typename T>
inline void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

template <typename T>
inline T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline uint16_t stamp_of(Time now) { return static_cast<uint16_t>(now / kStampUnit); }

inline void encode(const Header& header, uint8_t* out) {
  out[0] = static_cast<uint8_t>(kVersion << 4 | static_cast<uint8_t>(header.kind));
  out[1] = static_cast<uint8_t>(header.flags << 4 | (header.incast & 0xF));
  store<uint16_t>(out + 2, header.source);
  store<uint32_t>(out + 4, header.group);
  store<uint32_t>(out + 8, header.key.sequence);
  store<uint16_t>(out + 12, header.key.tag);
  store<uint16_t>(out + 14, header.transfer);
  store<uint32_t>(out + 16, (header.offset & 0xFFFFFF) | uint32_t{header.timeout} << 24);
  store<uint16_t>(out + 20, header.stamp);
  store<uint16_t>(out + 22, header.path);
}

// False: not a packet of this protocol version. The caller still checks group, source and everything against the Plan.
inline bool decode(const uint8_t* in, size_t bytes, Header& header) {
  if (bytes < kHeaderBytes || in[0] >> 4 != kVersion) return false;
  const uint8_t kind = in[0] & 0xF;
  if (kind < static_cast<uint8_t>(Kind::kData) || kind > static_cast<uint8_t>(Kind::kProbeAck)) return false;
  header.kind = static_cast<Kind>(kind);
  header.flags = in[1] >> 4;
  header.incast = in[1] & 0xF;
  header.source = load<uint16_t>(in + 2);
  header.group = load<uint32_t>(in + 4);
  header.key.sequence = load<uint32_t>(in + 8);
  header.key.tag = load<uint16_t>(in + 12);
  header.transfer = load<uint16_t>(in + 14);
  const uint32_t word = load<uint32_t>(in + 16);
  header.offset = word & 0xFFFFFF;
  header.timeout = static_cast<uint8_t>(word >> 24);
  header.stamp = load<uint16_t>(in + 20);
  header.path = load<uint16_t>(in + 22);
  return true;
}

// Body of kEnter.
constexpr size_t kEnterBytes = 16;

inline void encode(const Fingerprint& print, uint8_t* out) {
  out[0] = print.collective;
  out[1] = print.dtype;
  out[2] = print.op;
  out[3] = print.family;
  store<uint32_t>(out + 4, print.root);
  store<uint64_t>(out + 8, print.count);
}

inline Fingerprint decode_fingerprint(const uint8_t* in) {
  return {in[0], in[1], in[2], in[3], load<uint32_t>(in + 4), load<uint64_t>(in + 8)};
}

// Body of kReport: the state of the path, then entries. A report is a snapshot: losing one, or hearing it twice, is harmless.
struct PathState {
  uint32_t largest = 0;   // highest path sequence received, unwrapped
  uint32_t received = 0;  // data packets received on the path, duplicates by the network included
  uint16_t stamp = 0;     // stamp of the newest packet from you ...
  uint32_t hold_us = 0;   // ... and how long it waited here before this report left
  uint32_t window = 0;    // payload bytes I can take from you at once
};
constexpr size_t kPathStateBytes = 20;  // the last two bytes count the entries

inline void encode(const PathState& path, uint16_t entries, uint8_t* out) {
  store<uint32_t>(out, path.largest);
  store<uint32_t>(out + 4, path.received);
  store<uint16_t>(out + 8, path.stamp);
  // 24 bits of microseconds (16.7 s) for the hold, 24 bits of KiB for the window
  const uint32_t hold = path.hold_us < 0xFFFFFF ? path.hold_us : 0xFFFFFF;
  const uint32_t kib = path.window >> 10 < 0xFFFFFF ? path.window >> 10 : 0xFFFFFF;
  store<uint32_t>(out + 10, hold | (kib & 0xFF) << 24);
  store<uint16_t>(out + 14, static_cast<uint16_t>(kib >> 8));
  store<uint16_t>(out + 16, entries);
  store<uint16_t>(out + 18, 0);
}

inline PathState decode_path_state(const uint8_t* in, uint16_t& entries) {
  PathState path;
  path.largest = load<uint32_t>(in);
  path.received = load<uint32_t>(in + 4);
  path.stamp = load<uint16_t>(in + 8);
  const uint32_t word = load<uint32_t>(in + 10);
  path.hold_us = word & 0xFFFFFF;
  path.window = (uint32_t{load<uint16_t>(in + 14)} << 8 | word >> 24) << 10;
  entries = load<uint16_t>(in + 16);
  return path;
}

enum EntryFlag : uint8_t {
  kDone = 1,     // all of the transfer is here: forget it
  kEntered = 2,  // I heard your Enter for this operation
  kAsking = 4,   // nothing has come for a while: send the tail, or say "not yet"
  kNotYet = 8,   // (sender to receiver) what you ask for is not ready here
  kGoneFlag = 16,  // (sender to receiver) what you ask for no longer exists here
};

constexpr uint16_t kNoTransfer = 0xFFFF;  // an entry about the operation as a whole

struct ReportEntry {
  OpKey key;
  uint16_t transfer = 0;
  uint8_t flags = 0;
  uint8_t ranges = 0;   // missing ranges that follow, each kRangeBytes
  uint32_t prefix = 0;  // every packet below this index is here
  uint32_t high = 0;    // one more than the highest index here
};
constexpr size_t kEntryBytes = 18;
constexpr size_t kRangeBytes = 6;

inline void encode(const ReportEntry& entry, uint8_t* out) {
  store<uint32_t>(out, entry.key.sequence);
  store<uint16_t>(out + 4, entry.key.tag);
  store<uint16_t>(out + 6, entry.transfer);
  out[8] = entry.flags;
  out[9] = entry.ranges;
  store<uint32_t>(out + 10, entry.prefix);
  store<uint32_t>(out + 14, entry.high);
}

inline ReportEntry decode_entry(const uint8_t* in) {
  ReportEntry entry;
  entry.key = {load<uint16_t>(in + 4), load<uint32_t>(in)};
  entry.transfer = load<uint16_t>(in + 6);
  entry.flags = in[8];
  entry.ranges = in[9];
  entry.prefix = load<uint32_t>(in + 10);
  entry.high = load<uint32_t>(in + 14);
  return entry;
}

// Body of kPing: u16 count, then (sequence u32, tag u16, transfer u16) of transfers the sender wants to hear about.
constexpr size_t kPingEntryBytes = 8;

// Body of kFail: code u8, scope u8 (0 operation, 1 group), culprit u16, then the fingerprints of reporter and culprit.
constexpr size_t kFailBytes = 4 + 2 * kEnterBytes;

}  // namespace tailcut
