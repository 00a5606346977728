// One operation in flight: the data flow of a Part over the caller's memory. Places what arrives, combines blocks when all their
// inputs are there, and says what is ready to be sent. Knows nothing of peers' clocks, packets' headers or time-outs.
#pragma once

#include <memory>
#include <vector>

#include "engine/part.hpp"
#include "engine/types.hpp"

namespace tailcut {

// How a region is cut: packets of `payload` bytes, tracked in blocks of `block_packets` (at most 64: one word of bits).
struct Geometry {
  uint32_t payload = 0;
  uint32_t block_packets = 0;
  static Geometry of(uint32_t payload);
  uint64_t block_bytes() const { return uint64_t{payload} * block_packets; }
  uint32_t packets(uint64_t bytes) const { return static_cast<uint32_t>((bytes + payload - 1) / payload); }
  uint32_t blocks(uint32_t packets) const { return (packets + block_packets - 1) / block_packets; }
};

struct SendState {
  const Step* step = nullptr;
  const uint8_t* data = nullptr;  // packet i lies at data + i * payload, also when only a tail of the region is kept
  uint32_t packets = 0;
  uint32_t ready = 0;             // packets below this index may be sent
  uint32_t next = 0;              // packets below this index have been sent once
  uint32_t acked = 0;             // packets below this index are at the peer
  bool done = false;              // all of it is at the peer
  uint32_t resend_count = 0;
  uint32_t resend_from = 0;       // first block that may hold a packet to send again
  std::vector<uint64_t> resend;   // by block; empty until the first loss
  uint32_t asked = kNobody;       // where the peer's prefix was when it last asked for what is missing
  uint32_t again = 0;             // so often it has asked without progress since
  uint32_t copies = 1;            // of each packet that is sent again
  static constexpr uint32_t kNobody = 0xFFFFFFFF;
  struct Sent {
    uint32_t path = 0;            // path sequence of the block's newest packet
    uint32_t at_us = 0;           // and when it left (wraps)
  };
  std::vector<Sent> sent;         // by block
  Time probe_at = kNever;         // when to ask the peer what it has got
  Time probe_pause = 0;
  uint32_t asks = 0;              // so often, without an answer that confirmed anything
  uint64_t bytes_of(uint32_t packet, uint32_t payload) const {
    return packet + 1 == packets ? step->region.length - uint64_t{packet} * payload : payload;
  }
};

struct RecvState {
  const Step* step = nullptr;
  uint8_t* data = nullptr;
  uint32_t packets = 0;
  uint32_t received = 0;
  uint32_t prefix = 0;            // every packet below is here
  uint32_t high = 0;              // one more than the highest here
  std::vector<uint64_t> have;     // by block
  bool done = false;
  bool ask = false;               // the next report names it, and asks for its tail
  Time quiet_at = kNever;         // when to ask for the tail
  Time quiet_pause = 0;
  uint32_t asks = 0;              // so often since the last data; from kNoHurry on it is no loss that we wait for
  static constexpr uint32_t kNoHurry = 8;
};

enum class Placed : uint8_t { kNew, kDuplicate, kMalformed };

class Operation {
 public:
  // Sizes everything and runs what waits for nothing. Memory of an earlier operation over the same Part is used again.
  void begin(std::shared_ptr<const Part> part, Geometry geometry, OpKey key, const Fingerprint& print, const void* input, void* output);

  Placed place(RecvState& recv, uint32_t packet, const uint8_t* payload, size_t bytes);

  // Everything has arrived, been combined and been sent at least once.
  bool flow_complete() const { return recvs_left == 0 && combines_left == 0 && sends_left == 0; }

  // After completion: bytes to copy so that peers can still ask for what they have not confirmed; then do so.
  uint64_t retain_need() const;
  void retain();
  bool retained_done() const;

  OpKey key;
  Fingerprint print;
  std::shared_ptr<const Part> part;
  Geometry geometry;
  std::vector<SendState> sends;   // as part->sends
  std::vector<RecvState> recvs;   // as part->recvs
  uint32_t recvs_left = 0;
  uint32_t combines_left = 0;     // blocks
  uint32_t sends_left = 0;        // sends with packets never sent
  uint32_t send_cursor = 0;       // sends below it need no look: all sent, nothing to repair
  uint64_t received_bytes = 0, expected_bytes = 0;

  uint64_t memory_bytes() const { return stage_bytes_ + kept_.size(); }

 private:
  struct Keep {
    Region region;
    uint32_t first = 0;  // packet
    uint64_t at = 0;     // offset in kept_
  };
  void size_states();
  uint8_t* locate(const Region& region) const;
  void start_flow();
  void block_done(uint32_t step, uint32_t block);
  void combine(const Step& step, uint32_t block);
  std::vector<Keep> plan_keep(uint64_t& bytes) const;

  const uint8_t* input_ = nullptr;
  uint8_t* output_ = nullptr;
  std::unique_ptr<uint8_t[]> stage_;
  uint64_t stage_bytes_ = 0;
  std::vector<uint8_t> kept_;
  std::vector<std::vector<uint16_t>> pending_;  // by step, by block: how many of `after` are missing
  std::vector<uint32_t> slot_;                  // by step: its place in sends or recvs
  std::vector<const void*> inputs_;             // scratch of combine()
};

}  // namespace tailcut
