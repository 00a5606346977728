#include "engine/operation.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/reduce.hpp"

namespace tailcut {

namespace {

constexpr uint64_t kBlockTarget = 36 * 1024;  // bytes: small, for a block passes on only when it is complete, at every hop

uint64_t mask_of(uint32_t bits) { return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

}  // namespace

Geometry Geometry::of(uint32_t payload) {
  uint32_t packets = 64;
  while (packets > 1 && uint64_t{packets} * payload > kBlockTarget) packets /= 2;
  return {payload, packets};
}

void Operation::begin(std::shared_ptr<const Part> new_part, Geometry new_geometry, OpKey new_key, const Fingerprint& new_print,
                      const void* input, void* output) {
  const bool same = part == new_part && geometry.payload == new_geometry.payload;
  part = std::move(new_part);
  geometry = new_geometry;
  key = new_key;
  print = new_print;
  input_ = static_cast<const uint8_t*>(input);
  output_ = static_cast<uint8_t*>(output);
  if (!same || stage_bytes_ < part->stage_bytes) {
    stage_.reset(part->stage_bytes ? new uint8_t[part->stage_bytes] : nullptr);
    stage_bytes_ = part->stage_bytes;
  }
  kept_.clear();
  send_cursor = 0;
  received_bytes = 0;
  size_states();
  start_flow();
}

void Operation::size_states() {
  pending_.resize(part->steps.size());
  slot_.assign(part->steps.size(), 0);
  sends.resize(part->sends.size());
  recvs.resize(part->recvs.size());
  combines_left = 0;
  for (uint32_t i = 0; i < part->steps.size(); ++i) {
    const Step& step = part->steps[i];
    const uint32_t blocks = geometry.blocks(geometry.packets(step.region.length));
    pending_[i].assign(step.after.empty() ? 0 : blocks, static_cast<uint16_t>(step.after.size()));
    if (step.kind == StepKind::kCombine) combines_left += blocks;
  }
  for (uint32_t i = 0; i < sends.size(); ++i) {
    SendState& send = sends[i];
    std::vector<SendState::Sent> sent = std::move(send.sent);
    send = SendState{};
    send.step = &part->steps[part->sends[i]];
    send.data = locate(send.step->region);
    send.packets = geometry.packets(send.step->region.length);
    sent.assign(geometry.blocks(send.packets), SendState::Sent{});
    send.sent = std::move(sent);
    slot_[part->sends[i]] = i;
  }
  for (uint32_t i = 0; i < recvs.size(); ++i) {
    RecvState& recv = recvs[i];
    std::vector<uint64_t> have = std::move(recv.have);
    recv = RecvState{};
    recv.step = &part->steps[part->recvs[i]];
    recv.data = locate(recv.step->region);
    recv.packets = geometry.packets(recv.step->region.length);
    have.assign(geometry.blocks(recv.packets), 0);
    recv.have = std::move(have);
    slot_[part->recvs[i]] = i;
  }
  expected_bytes = 0;
  for (const RecvState& recv : recvs) expected_bytes += recv.step->region.length;
  recvs_left = static_cast<uint32_t>(recvs.size());
  sends_left = static_cast<uint32_t>(sends.size());
}

uint8_t* Operation::locate(const Region& region) const {
  switch (region.buffer) {
    case Buffer::kInput: return const_cast<uint8_t*>(input_) + region.offset;  // only ever read: Part refuses to write the input
    case Buffer::kOutput: return output_ + region.offset;
    case Buffer::kStage: break;
  }
  return stage_.get() + region.offset;
}

void Operation::start_flow() {
  for (SendState& send : sends) {
    if (send.step->after.empty()) send.ready = send.packets;
  }
  for (const uint32_t index : part->combines) {
    const Step& step = part->steps[index];
    if (!step.after.empty()) continue;
    const uint32_t blocks = geometry.blocks(geometry.packets(step.region.length));
    for (uint32_t block = 0; block < blocks; ++block) {
      combine(step, block);
      block_done(index, block);
    }
  }
}

Placed Operation::place(RecvState& recv, uint32_t packet, const uint8_t* payload, size_t bytes) {
  if (packet >= recv.packets) return Placed::kMalformed;
  const uint64_t at = uint64_t{packet} * geometry.payload;
  const uint64_t expected = std::min<uint64_t>(geometry.payload, recv.step->region.length - at);
  if (bytes != expected) return Placed::kMalformed;
  const uint32_t block = packet / geometry.block_packets;
  const uint64_t bit = uint64_t{1} << packet % geometry.block_packets;
  if (recv.done || recv.have[block] & bit) return Placed::kDuplicate;
  std::memcpy(recv.data + at, payload, bytes);
  recv.have[block] |= bit;
  recv.high = std::max(recv.high, packet + 1);
  received_bytes += bytes;
  ++recv.received;
  if (packet == recv.prefix) {
    do {
      ++recv.prefix;
    } while (recv.prefix < recv.packets && recv.have[recv.prefix / geometry.block_packets] >> recv.prefix % geometry.block_packets & 1);
  }
  if (recv.received == recv.packets) {
    recv.done = true;
    --recvs_left;
  }
  const uint32_t in_block = std::min(geometry.block_packets, recv.packets - block * geometry.block_packets);
  if (recv.have[block] == mask_of(in_block)) {
    block_done(static_cast<uint32_t>(recv.step - part->steps.data()), block);
  }
  return Placed::kNew;
}

void Operation::block_done(uint32_t index, uint32_t block) {
  for (const uint32_t fed : part->steps[index].feeds) {
    if (--pending_[fed][block] > 0) continue;
    const Step& step = part->steps[fed];
    if (step.kind == StepKind::kCombine) {
      combine(step, block);
      block_done(fed, block);
      continue;
    }
    SendState& send = sends[slot_[fed]];
    uint32_t ready = send.ready / geometry.block_packets;  // sends go in order: the ready part is a prefix
    while (ready < pending_[fed].size() && pending_[fed][ready] == 0) ++ready;
    send.ready = std::min(ready * geometry.block_packets, send.packets);
    send_cursor = std::min(send_cursor, slot_[fed]);
  }
}

void Operation::combine(const Step& step, uint32_t block) {
  const uint64_t at = block * geometry.block_bytes();
  const uint64_t bytes = std::min(geometry.block_bytes(), step.region.length - at);
  uint8_t* out = locate(step.region) + at;
  inputs_.clear();
  for (const Region& in : step.inputs) inputs_.push_back(locate(in) + at);
  --combines_left;
  if (inputs_.size() == 1) {
    const bool divide = step.final && print.op == static_cast<uint8_t>(ReduceOp::kAvg) && part->size > 1;
    if (!divide) {
      if (inputs_[0] != out) std::memmove(out, inputs_[0], bytes);
      return;
    }
  }
  const uint64_t divisor = step.final && print.op == static_cast<uint8_t>(ReduceOp::kAvg) ? part->size : 0;
  reduce(static_cast<DType>(print.dtype), static_cast<ReduceOp>(print.op), inputs_.data(), inputs_.size(), out, bytes / part->itemsize, divisor);
}

// What a peer has confirmed is a prefix of each send. Sends of one region to many peers share one copy, from the lowest prefix on.
std::vector<Operation::Keep> Operation::plan_keep(uint64_t& bytes) const {
  std::vector<Keep> keeps;
  bytes = 0;
  for (const SendState& send : sends) {
    if (!send.step->retain || send.done || send.step->region.buffer == Buffer::kStage) continue;
    const Region& region = send.step->region;
    auto same = std::find_if(keeps.begin(), keeps.end(), [&](const Keep& keep) {
      return keep.region.buffer == region.buffer && keep.region.offset == region.offset && keep.region.length == region.length;
    });
    if (same == keeps.end()) {
      keeps.push_back({region, send.acked, 0});
    } else {
      same->first = std::min(same->first, send.acked);
    }
  }
  for (Keep& keep : keeps) {
    keep.at = bytes;
    bytes += keep.region.length - std::min(keep.region.length, uint64_t{keep.first} * geometry.payload);
  }
  return keeps;
}

uint64_t Operation::retain_need() const {
  uint64_t bytes = 0;
  plan_keep(bytes);
  return bytes;
}

void Operation::retain() {
  uint64_t bytes = 0;
  const std::vector<Keep> keeps = plan_keep(bytes);
  kept_.resize(bytes);
  for (const Keep& keep : keeps) {
    const uint64_t from = std::min(keep.region.length, uint64_t{keep.first} * geometry.payload);
    std::memcpy(kept_.data() + keep.at, locate(keep.region) + from, keep.region.length - from);
    for (SendState& send : sends) {
      const Region& region = send.step->region;
      if (!send.step->retain || send.done || region.buffer != keep.region.buffer || region.offset != keep.region.offset) continue;
      if (region.length == keep.region.length) send.data = kept_.data() + keep.at - from;
    }
  }
  for (SendState& send : sends) {
    if (!send.step->retain) send.done = true;
    if (send.done) {
      send.data = nullptr;
      send.resend_count = 0;
    }
  }
  input_ = nullptr;
  output_ = nullptr;
}

bool Operation::retained_done() const {
  return std::all_of(sends.begin(), sends.end(), [](const SendState& send) { return send.done; });
}

}  // namespace tailcut
