// What packets from peers mean. Nothing from the network is trusted: every field is checked against what the Plan expects.
#include <algorithm>

#include "engine/engine.hpp"

namespace tailcut {

namespace {
constexpr size_t kMaxEarly = 4096;          // operations that peers may have entered before us
constexpr uint32_t kMaxAhead = 1u << 20;    // sequences beyond what we have finished in a tag
constexpr int32_t kSmallStep = 1024;         // path sequences
constexpr Time kIdle = 50 * kMillisecond;    // a longer pause says nothing about how data flows
constexpr Time kTellPause = 50 * kMillisecond;
}  // namespace

void Engine::receive(Time now, Time arrived, Rank from, const uint8_t* data, size_t bytes) {
  ++counters_.packets_received;
  Header header;
  if (!decode(data, bytes, header) || from >= peers_.size() || from == rank_ || header.source != from) {
    ++counters_.dropped_malformed;
    return;
  }
  if (header.group != group_) {
    ++counters_.dropped_wrong_group;
    return;
  }
  Peer& peer = *peers_[from];
  peer.heard_at = now;
  if (arrived > peer.stamp_at) {  // of a batch the kernel merged, its time stamp is that of the first packet
    peer.stamp = header.stamp;
    peer.stamp_at = arrived;
  }
  if (failed_ && header.kind != Kind::kFail && header.kind != Kind::kBye) {
    if (now - peer.told_at > kTellPause) tell(from, {}, *failed_, true);
    peer.told_at = now;
    ++counters_.dropped_stale;
    return;
  }
  const uint8_t* body = data + kHeaderBytes;
  const size_t length = bytes - kHeaderBytes;
  switch (header.kind) {
    case Kind::kData:
      arrivals_.add(arrived, length, peer.local);
      on_data(now, from, header, body, length);
      break;
    case Kind::kEnter: on_enter(now, from, header, body, length); break;
    case Kind::kReport: on_report(now, arrived, from, header.stamp, body, length); break;
    case Kind::kPing: on_ping(now, from, header, body, length); break;
    case Kind::kFail: on_fail(now, from, header, body, length); break;
    case Kind::kBye:
      if (!peer.closed) peer.closed_at = now;
      peer.closed = true;
      forget_peer(from);
      wake_by(now + 300 * kMillisecond);
      break;
    default: break;  // probes are the driver's business
  }
  sweep();
}

void Engine::on_data(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes) {
  Peer& peer = *peers_[from];
  // An old packet may come again, by accident or by malice: of operations that are over only a small step ahead is believed.
  const auto step = static_cast<int16_t>(header.path - static_cast<uint16_t>(peer.seen));
  const int32_t farthest = is_over(header.key) ? kSmallStep : static_cast<int32_t>(options_.max_window_packets);
  if (step > 0 && step <= farthest) peer.seen += static_cast<uint32_t>(step);
  ++peer.received;
  ++peer.unreported;
  if (now > peer.data_at && now - peer.data_at < kIdle) peer.data_pause += (now - peer.data_at - peer.data_pause) / 8;
  peer.data_at = now;
  peer.bytes_received += bytes;
  if (header.flags & kReportNow || peer.unreported >= options_.report_every) {
    queue_report(from);
  } else {
    const Time reorder = std::clamp<Time>(peer.control.srtt() / 8, 50 * kMicrosecond, options_.report_delay);
    due(from, now + (step > 1 ? reorder : options_.report_delay));
  }
  Active* active = find(header.key);
  // Before we have heard what the sender wants, nothing it sends may enter a sum: it could be another operation.
  const bool unheard = active != nullptr && active->running && active->entered[from] == kNever;
  if (unheard || (active == nullptr && !is_over(header.key))) {
    stash(now, from, header, body, bytes, unheard);
    return;
  }
  if (active == nullptr || !active->running) {
    ++counters_.dropped_stale;
    if (header.offset % 64 == 0 || header.flags & kReportNow) {
      if (!tell_if_failed(from, header.key)) note(from, header.key, header.transfer, kDone | kEntered, now, now + options_.report_delay);
    }
    return;
  }
  const int index = active->op->part->find_recv(from, header.transfer);
  if (index < 0) {
    ++counters_.dropped_unexpected;
    return;
  }
  RecvState& recv = active->op->recvs[index];
  switch (active->op->place(recv, header.offset, body, bytes)) {
    case Placed::kMalformed: ++counters_.dropped_malformed; return;
    case Placed::kDuplicate: ++counters_.dropped_duplicate; return;
    case Placed::kNew: break;
  }
  ++counters_.data_received;
  if (!active->eager) confirm(*active, from);  // granted data comes only from a peer that heard our Enter
  recv.quiet_pause = 0;
  recv.asks = 0;
  recv.quiet_at = now + std::max(peer.control.tail_timeout(), 4 * peer.data_pause);
  if (!recv.done) {
    wake_by(recv.quiet_at);
    return;
  }
  note(from, header.key, header.transfer, kDone | (active->entered[from] != kNever ? kEntered : 0), now, now + options_.report_delay);
  try_complete(now, *active);
}

Engine::Early* Engine::early(OpKey key) {
  const auto at = early_.find(key.packed());
  if (at != early_.end()) return &at->second;
  const auto tag = tags_.find(key.tag);
  const uint32_t low = tag == tags_.end() ? 0 : tag->second.low;
  if (early_.size() >= kMaxEarly || key.sequence - low > kMaxAhead) {
    ++counters_.dropped_early_full;
    return nullptr;
  }
  return &early_[key.packed()];
}

void Engine::stash(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes, bool ask) {
  if (ask) note(from, header.key, kNoTransfer, kAsking, now, now + options_.report_delay);  // its Enter must have got lost
  if (stash_bytes_ + bytes > options_.stash_bytes || bytes > geometry_.payload) {
    ++counters_.dropped_stash_full;
    return;
  }
  Early* waiting = early(header.key);
  if (waiting == nullptr) return;
  waiting->data.push_back({from, header.transfer, header.offset, {body, body + bytes}});
  stash_bytes_ += bytes;
}

// Places what came of an operation from a rank before we knew what that rank wanted.
void Engine::replay(Time now, Active& active, Rank from) {
  const auto at = early_.find(active.op->key.packed());
  if (at == early_.end()) return;
  std::vector<Early::Stored> kept;
  for (Early::Stored& stored : at->second.data) {
    if (stored.from != from) {
      kept.push_back(std::move(stored));
      continue;
    }
    stash_bytes_ -= stored.payload.size();
    const int index = active.op->part->find_recv(from, stored.transfer);
    if (index < 0) {
      ++counters_.dropped_unexpected;
      continue;
    }
    RecvState& recv = active.op->recvs[index];
    const Placed placed = active.op->place(recv, stored.offset, stored.payload.data(), stored.payload.size());
    counters_.data_received += placed == Placed::kNew;
    counters_.dropped_malformed += placed == Placed::kMalformed;
    counters_.dropped_duplicate += placed == Placed::kDuplicate;
    if (recv.done) note(from, active.op->key, stored.transfer, kDone | kEntered, now, now + options_.report_delay);
  }
  at->second.data = std::move(kept);
}

bool Engine::stashed(OpKey key, Rank from) const {
  const auto at = early_.find(key.packed());
  if (at == early_.end()) return false;
  return std::any_of(at->second.data.begin(), at->second.data.end(), [&](const Early::Stored& stored) { return stored.from == from; });
}

void Engine::drop_early(OpKey key) {
  const auto at = early_.find(key.packed());
  if (at == early_.end()) return;
  for (const Early::Stored& stored : at->second.data) stash_bytes_ -= stored.payload.size();
  early_.erase(at);
}

void Engine::on_enter(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes) {
  if (bytes != kEnterBytes) {
    ++counters_.dropped_malformed;
    return;
  }
  const Fingerprint print = decode_fingerprint(body);
  Active* active = find(header.key);
  if (active != nullptr && active->running) {
    note(from, header.key, kNoTransfer, kEntered, now, now + options_.report_delay);
    accept_enter(now, *active, from, print);
    return;
  }
  if (active != nullptr || is_over(header.key)) {
    if (!tell_if_failed(from, header.key)) note(from, header.key, kNoTransfer, kEntered, now, now);
    return;
  }
  Early* waiting = early(header.key);
  if (waiting == nullptr) return;
  note(from, header.key, kNoTransfer, kEntered, now, now + options_.report_delay);
  for (const auto& [rank, known] : waiting->enters) {
    if (rank == from) return;
  }
  waiting->enters.emplace_back(from, print);
}

void Engine::accept_enter(Time now, Active& active, Rank from, const Fingerprint& print) {
  if (active.entered[from] != kNever) return;
  active.entered[from] = now;
  if (print != active.op->print) {
    Result cause;
    cause.code = ErrorCode::kMismatch;
    cause.culprits = {from};
    cause.reporter = rank_;
    cause.ours = active.op->print;
    cause.theirs = print;
    fail_operation(now, active, cause, true);
    return;
  }
  const auto& peers = active.op->part->peers;
  if (std::binary_search(peers.begin(), peers.end(), from)) --active.enters_left;
  active.op->send_cursor = 0;  // what waited for this grant may go
  replay(now, active, from);
  const Time quiet = now + peers_[from]->control.rto();
  for (const uint32_t index : active.op->part->recvs_from(from)) {
    RecvState& recv = active.op->recvs[index];
    if (!recv.done && recv.quiet_at == kNever) recv.quiet_at = quiet;
  }
  wake_by(quiet);
  try_complete(now, active);
}

void Engine::on_ping(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes) {
  if (bytes < 2 || bytes != 2 + kPingEntryBytes * load<uint16_t>(body)) {
    ++counters_.dropped_malformed;
    return;
  }
  const auto step = static_cast<int16_t>(header.path - static_cast<uint16_t>(peers_[from]->seen));
  if (header.flags & kPathCounts && step > 0 && step <= kSmallStep) peers_[from]->seen += static_cast<uint32_t>(step);
  queue_report(from);
  const uint16_t count = load<uint16_t>(body);
  for (uint16_t i = 0; i < count; ++i) {
    const uint8_t* at = body + 2 + i * kPingEntryBytes;
    const OpKey key{load<uint16_t>(at + 4), load<uint32_t>(at)};
    const uint16_t transfer = load<uint16_t>(at + 6);
    Active* active = find(key);
    if (active != nullptr && active->running) {
      const int index = active->op->part->find_recv(from, transfer);
      if (index < 0) continue;
      RecvState& recv = active->op->recvs[index];
      if (active->entered[from] == kNever) {  // what it sent waits in the stash for its Enter
        note(from, key, kNoTransfer, kAsking, now, now);
        continue;
      }
      recv.ask |= !recv.done;
      if (recv.done) note(from, key, transfer, kDone, now, now);
    } else if (active != nullptr || is_over(key)) {
      if (!tell_if_failed(from, key)) note(from, key, transfer, kDone | kEntered, now, now);
    }
  }
}

void Engine::on_fail(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes) {
  if (bytes != kFailBytes || body[0] == 0 || body[0] > static_cast<uint8_t>(ErrorCode::kGone)) {
    ++counters_.dropped_malformed;
    return;
  }
  Result cause;
  cause.code = static_cast<ErrorCode>(body[0]);
  cause.reporter = from;
  const Rank culprit = load<uint16_t>(body + 2);
  if (culprit < peers_.size()) cause.culprits = {culprit};
  const Fingerprint reporters = decode_fingerprint(body + 4), culprits = decode_fingerprint(body + 4 + kEnterBytes);
  cause.ours = reporters;
  cause.theirs = culprits;
  if (body[1] == 1) {
    fail_group(now, cause, peers_.size() <= 64);
    return;
  }
  Active* active = find(header.key);
  if (active != nullptr) {
    fail_as_told(now, *active, cause);
  } else if (!is_over(header.key)) {
    if (Early* waiting = early(header.key)) waiting->fail = cause;
  }
}

// Of two ranks that differ, the one that differs from us is the one to name.
void Engine::fail_as_told(Time now, Active& active, Result cause) {
  if (cause.code == ErrorCode::kMismatch && active.op->print == cause.theirs) {
    cause.culprits = {cause.reporter};
    std::swap(cause.ours, cause.theirs);
  }
  fail_operation(now, active, cause, false);
}

}  // namespace tailcut
