#include "engine/part.hpp"

#include <set>
#include <stdexcept>

#include "engine/wire.hpp"

namespace tailcut {

namespace {

std::vector<Step> with_feeds(std::vector<Step> steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const uint32_t before : steps[i].after) {
      if (before >= steps.size()) throw std::invalid_argument("step " + std::to_string(i) + " waits for a step that does not exist");
      steps[before].feeds.push_back(static_cast<uint32_t>(i));
    }
  }
  return steps;
}

}  // namespace

Part::Part(uint32_t size_, Rank rank_, uint64_t input, uint64_t output, uint64_t stage, uint32_t item, std::vector<Step> list)
    : size(size_), rank(rank_), input_bytes(input), output_bytes(output), stage_bytes(stage), itemsize(item),
      steps(with_feeds(std::move(list))) {
  if (size == 0 || size >= kNoRank || rank >= size) throw std::invalid_argument("rank outside the group");
  if (itemsize == 0 || itemsize > 8) throw std::invalid_argument("itemsize must be 1 to 8 bytes");
  for (size_t i = 0; i < steps.size(); ++i) check(steps[i], i);
  collect();
}

void Part::check_region(const Region& region, uint64_t length, size_t index) const {
  const uint64_t bound = region.buffer == Buffer::kInput ? input_bytes : region.buffer == Buffer::kOutput ? output_bytes : stage_bytes;
  if (region.length != length || length == 0 || region.offset > bound || bound - region.offset < length || length % itemsize ||
      length >= uint64_t{kMaxPackets} * 1024) {
    throw std::invalid_argument("step " + std::to_string(index) + ": region outside its buffer, unequal, empty or misaligned");
  }
}

void Part::check(const Step& step, size_t index) const {
  check_region(step.region, step.region.length, index);
  if (step.kind != StepKind::kCombine && (step.peer >= size || step.peer == rank || step.transfer == kNoTransfer)) {
    throw std::invalid_argument("step " + std::to_string(index) + ": peer outside the group");
  }
  if (step.kind == StepKind::kCombine && step.inputs.empty()) {
    throw std::invalid_argument("step " + std::to_string(index) + ": nothing to combine");
  }
  for (const Region& in : step.inputs) check_region(in, step.region.length, index);
  for (const uint32_t before : step.after) {
    if (steps[before].kind == StepKind::kSend || steps[before].region.length != step.region.length) {
      throw std::invalid_argument("step " + std::to_string(index) + ": waits for a step of another length");
    }
  }
  if (step.kind == StepKind::kRecv && (!step.after.empty() || step.region.buffer == Buffer::kInput)) {
    throw std::invalid_argument("step " + std::to_string(index) + ": a receive waits for nothing and never writes the input");
  }
}

void Part::collect() {
  std::set<Rank> needed;
  if (size > 1) {  // neighbours always: a mismatch is then noticed in any Plan, also an empty one
    needed.insert(static_cast<Rank>((rank + 1) % size));
    needed.insert(static_cast<Rank>((rank + size - 1) % size));
  }
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (step.kind == StepKind::kCombine) {
      combines.push_back(i);
      continue;
    }
    needed.insert(step.peer);
    auto& list = step.kind == StepKind::kSend ? sends : recvs;
    auto& index = step.kind == StepKind::kSend ? send_index_ : recv_index_;
    if (!index.emplace(uint32_t{step.peer} << 16 | step.transfer, static_cast<int>(list.size())).second) {
      throw std::invalid_argument("step " + std::to_string(i) + ": transfer number used twice");
    }
    if (step.kind == StepKind::kRecv) recvs_by_peer_[step.peer].push_back(static_cast<uint32_t>(list.size()));
    list.push_back(i);
  }
  // A Part that moves nothing still waits for everybody's word: nothing else would tell it that somebody wants something else.
  for (uint32_t other = 0; sends.empty() && recvs.empty() && other < size; ++other) {
    if (other != rank) needed.insert(static_cast<Rank>(other));
  }
  peers.assign(needed.begin(), needed.end());
}

}  // namespace tailcut
