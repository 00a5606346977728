// One rank's part of a Plan, in the form the engine executes. Immutable after construction and shared between operations.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/types.hpp"

namespace tailcut {

enum class Buffer : uint8_t { kInput = 0, kOutput = 1, kStage = 2 };

struct Region {
  Buffer buffer = Buffer::kInput;
  uint64_t offset = 0;  // bytes
  uint64_t length = 0;  // bytes
};

enum class StepKind : uint8_t { kSend, kRecv, kCombine };

struct Step {
  StepKind kind = StepKind::kSend;
  Rank peer = kNoRank;      // Send, Recv
  uint16_t transfer = 0;    // Send, Recv
  uint8_t stage = 0;
  bool retain = false;      // Send: keep for the peer after the operation ended here
  bool final = false;       // Combine: the result is the complete reduction
  Region region;            // Send: source; Recv, Combine: target
  std::vector<Region> inputs;     // Combine, in the order of the sum
  std::vector<uint32_t> after;    // steps whose target this one reads
  std::vector<uint32_t> feeds;    // the reverse: steps that wait for this one
};

class Part {
 public:
  // Throws std::invalid_argument with a sentence when the steps do not make sense: the Plan may come from anywhere.
  Part(uint32_t size, Rank rank, uint64_t input_bytes, uint64_t output_bytes, uint64_t stage_bytes, uint32_t itemsize,
       std::vector<Step> steps);

  const uint32_t size;
  const Rank rank;
  const uint64_t input_bytes, output_bytes, stage_bytes;
  const uint32_t itemsize;
  const std::vector<Step> steps;
  std::vector<uint32_t> sends, recvs, combines;  // indices of steps, in order
  std::vector<Rank> peers;                       // whose announcement the operation needs

  // Index into `recvs` / `sends`, or -1.
  int find_recv(Rank from, uint16_t transfer) const { return find(recv_index_, from, transfer); }
  const std::vector<uint32_t>& recvs_from(Rank peer) const {
    static const std::vector<uint32_t> kNone;
    const auto at = recvs_by_peer_.find(peer);
    return at == recvs_by_peer_.end() ? kNone : at->second;
  }
  int find_send(Rank to, uint16_t transfer) const { return find(send_index_, to, transfer); }

 private:
  using Index = std::unordered_map<uint32_t, int>;
  static int find(const Index& index, Rank peer, uint16_t transfer) {
    const auto at = index.find(uint32_t{peer} << 16 | transfer);
    return at == index.end() ? -1 : at->second;
  }
  void check(const Step& step, size_t index) const;
  void check_region(const Region& region, uint64_t length, size_t index) const;
  void collect();
  Index recv_index_, send_index_;
  std::unordered_map<Rank, std::vector<uint32_t>> recvs_by_peer_;  // indices into `recvs`
};

}  // namespace tailcut
