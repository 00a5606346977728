// The life of operations: begin, complete, stay for peers, fail, be forgotten.
#include "engine/engine.hpp"

#include <algorithm>
#include <stdexcept>

namespace tailcut {

namespace {
constexpr size_t kMaxSpare = 16;                // finished operations kept for their memory
constexpr uint64_t kMaxSpareBytes = 512 << 20;
constexpr size_t kMaxFailures = 256;            // failed operations remembered for peers that ask
}  // namespace

bool Engine::TagState::over(uint32_t sequence) const {
  return sequence < low || std::find(above.begin(), above.end(), sequence) != above.end();
}

void Engine::TagState::finish(uint32_t sequence) {
  if (sequence != low) {
    above.push_back(sequence);
    return;
  }
  ++low;
  for (auto next = std::find(above.begin(), above.end(), low); next != above.end(); next = std::find(above.begin(), above.end(), low)) {
    above.erase(next);
    ++low;
  }
}

Engine::Engine(uint32_t group, Rank rank, std::vector<bool> local, uint32_t payload, const Options& options)
    : group_(group), rank_(rank), options_(options), geometry_(Geometry::of(payload)), port_(options, payload + kHeaderBytes) {
  if (local.empty() || rank >= local.size() || payload < 512 || payload % 8) throw std::invalid_argument("engine: rank or payload size");
  for (const bool here : local) peers_.push_back(std::make_unique<Peer>(options_, payload + kHeaderBytes, here));
}

Engine::Active* Engine::find(OpKey key) {
  const auto at = by_key_.find(key.packed());
  return at == by_key_.end() ? nullptr : at->second;
}

bool Engine::is_over(OpKey key) const {
  const auto at = tags_.find(key.tag);
  return at != tags_.end() && at->second.over(key.sequence);
}

Operation* Engine::take_operation(const std::shared_ptr<const Part>& part) {
  for (auto at = spare_.begin(); at != spare_.end(); ++at) {
    if ((*at)->part != part) continue;
    Operation* op = at->release();
    spare_.erase(at);
    return op;
  }
  return new Operation();
}

void Engine::release(Active& active) {
  retained_bytes_ -= active.kept_bytes;
  active.kept_bytes = 0;
  spare_.emplace_back(active.op);
  active.op = nullptr;
  uint64_t bytes = 0;
  for (const auto& op : spare_) bytes += op->memory_bytes();
  while (spare_.size() > kMaxSpare || (bytes > kMaxSpareBytes && spare_.size() > 1)) {
    bytes -= spare_.front()->memory_bytes();
    spare_.erase(spare_.begin());
  }
}

uint64_t Engine::start(Time now, std::shared_ptr<const Part> part, OpKey key, const Fingerprint& print, const void* input, void* output,
                       Time timeout) {
  if (part->size != peers_.size() || part->rank != rank_) throw std::invalid_argument("the Plan is for another group or rank");
  if (find(key) || is_over(key)) throw std::invalid_argument("an operation with this tag and sequence exists already");
  auto owned = std::make_unique<Active>();
  Active& active = *owned;
  active.ticket = next_ticket_++;
  active.started = now;
  active.deadline = timeout > 0 && timeout < kNever - now ? now + timeout : kNever;
  active.entered.assign(peers_.size(), kNever);
  active.confirmed.assign(peers_.size(), 1);
  active.op = take_operation(part);
  active.op->begin(part, geometry_, key, print, input, output);
  active.eager = std::max(part->input_bytes, part->output_bytes) <= options_.eager_bytes;
  active.enters_left = active.confirms_left = static_cast<uint32_t>(part->peers.size());
  Time pause = 10 * kMillisecond;
  for (const Rank peer : part->peers) {
    active.confirmed[peer] = 0;
    control_.push_back({Kind::kEnter, peer, key, {}, false, false, far(*peers_[peer]) ? 2u : 1u});
    pause = std::max(pause, peers_[peer]->control.rto());
  }
  active.enter_pause = pause;
  active.enter_at = now + pause;
  active_.push_back(std::move(owned));
  by_key_[key.packed()] = &active;
  const uint64_t ticket = active.ticket;
  wake_by(std::min(active.deadline, now + kMillisecond));
  if (failed_ || left_) {
    Result cause = failed_ ? *failed_ : Result{};
    if (!failed_) cause.code = ErrorCode::kClosed;
    fail_operation(now, active, cause, false);
  } else {
    replay_early(now, active);
  }
  sweep();
  return ticket;
}

void Engine::replay_early(Time now, Active& active) {
  const auto at = early_.find(active.op->key.packed());
  if (at != early_.end()) {
    const std::optional<Result> fail = std::move(at->second.fail);
    const auto enters = std::move(at->second.enters);
    at->second.enters.clear();
    if (fail) {
      fail_as_told(now, active, *fail);
      return;
    }
    for (const auto& [from, print] : enters) {
      accept_enter(now, active, from, print);
      if (!active.running) return;
    }
  }
  try_complete(now, active);
}

void Engine::try_complete(Time now, Active& active) {
  if (!active.running || active.enters_left > 0 || !active.op->flow_complete()) return;
  const uint64_t need = active.op->retain_need();
  if (need > 0 && retained_bytes_ + need > options_.retained_bytes) {
    held_back_ = true;  // until reports have confirmed enough
    return;
  }
  active.op->retain();
  active.kept_bytes = need;
  retained_bytes_ += need;
  emit(now, active, ErrorCode::kNone, {});
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank]->closed) release_peer(active, rank);
  }
  settle_retained(active);
}

// The memory of the caller is ours no longer once this has run.
void Engine::emit(Time now, Active& active, ErrorCode code, const Result& cause) {
  Result result = cause;
  result.ticket = active.ticket;
  result.code = code;
  result.elapsed = now - active.started;
  result.received_bytes = active.op->received_bytes;
  result.ours = active.op->print;
  if (code != ErrorCode::kMismatch) result.theirs = result.ours;
  result.resent_packets = active.resent;
  result.expected_bytes = active.op->expected_bytes;
  for (const RecvState& recv : active.op->recvs) {
    if (recv.done || code == ErrorCode::kNone) continue;
    result.stage = std::max(result.stage, recv.step->stage);
    const Rank peer = recv.step->peer;
    const bool blamed = std::find(result.culprits.begin(), result.culprits.end(), peer) != result.culprits.end();
    const bool listed = std::find(result.waiting.begin(), result.waiting.end(), peer) != result.waiting.end();
    if (!blamed && !listed) result.waiting.push_back(peer);
  }
  for (const Time entered : active.entered) result.lags.push_back(entered == kNever ? kNever : entered - active.started);
  active.running = false;
  drop_early(active.op->key);
  tags_[active.op->key.tag].finish(active.op->key.sequence);
  events_.push_back(std::move(result));
}

void Engine::settle_retained(Active& active) {
  if (!active.running && active.confirms_left == 0 && active.op->retained_done()) sweep_due_ = true;
}

void Engine::confirm(Active& active, Rank from) {
  if (active.confirmed[from]) return;
  active.confirmed[from] = 1;
  --active.confirms_left;
  settle_retained(active);
}

void Engine::remember_failure(OpKey key, const Result& cause) {
  if (failures_.size() >= kMaxFailures) failures_.erase(failures_.begin());
  failures_[key.packed()] = cause;
}

void Engine::tell(Rank to, OpKey key, const Result& cause, bool group_scope) {
  if (to != rank_) control_.push_back({Kind::kFail, to, key, cause, group_scope});
}

bool Engine::tell_if_failed(Rank to, OpKey key) {
  if (failed_) {
    tell(to, key, *failed_, true);
    return true;
  }
  const auto at = failures_.find(key.packed());
  if (at == failures_.end()) return false;
  tell(to, key, at->second, false);
  return true;
}

void Engine::fail_operation(Time now, Active& active, const Result& cause, bool tell_all) {
  if (!active.running) return;
  if (tell_all) {
    for (Rank peer = 0; peer < peers_.size(); ++peer) tell(peer, active.op->key, cause, false);
  }
  remember_failure(active.op->key, cause);
  emit(now, active, cause.code, cause);
  for (SendState& send : active.op->sends) {
    send.done = true;
    send.resend_count = 0;
    send.ready = send.next;  // nothing to send any more: the memory is the caller's again
  }
  active.confirmed.assign(peers_.size(), 1);
  active.confirms_left = 0;
  sweep_due_ = true;
}

void Engine::fail_group(Time now, const Result& cause, bool tell_all) {
  if (failed_) return;
  failed_ = cause;
  if (tell_all) {
    for (int times = 0; times < 2; ++times) {  // twice: a lost one costs the peer its own liveness time
      for (Rank peer = 0; peer < peers_.size(); ++peer) tell(peer, {}, cause, true);
    }
  }
  for (const auto& active : active_) fail_operation(now, *active, cause, false);
  for (const auto& active : active_) {  // and nothing is kept for anybody: the group is over
    for (Rank rank = 0; rank < peers_.size(); ++rank) release_peer(*active, rank);
  }
  early_.clear();
  stash_bytes_ = 0;
}

// A peer that left or died will not ask for anything any more.
void Engine::forget_peer(Rank gone) {
  peers_[gone]->given_up = peers_[gone]->sent;
  peers_[gone]->silent = false;
  for (const auto& active : active_) {
    if (!active->running) release_peer(*active, gone);
  }
}

void Engine::release_peer(Active& active, Rank gone) {
  for (SendState& send : active.op->sends) {
    if (send.step->peer == gone) send.done = true;
  }
  confirm(active, gone);
  settle_retained(active);
}

void Engine::cancel(Time now, uint64_t ticket) {
  for (const auto& active : active_) {
    if (active->ticket != ticket || !active->running) continue;
    Result cause;
    cause.code = ErrorCode::kCancelled;
    cause.culprits = {rank_};
    fail_operation(now, *active, cause, true);
  }
  sweep();
}

void Engine::leave(Time now) {
  left_ = true;
  Result cause;
  cause.code = ErrorCode::kClosed;
  cause.culprits = {rank_};
  for (const auto& active : active_) fail_operation(now, *active, cause, true);
  for (Rank peer = 0; peer < peers_.size(); ++peer) {
    if (peer == rank_) continue;
    for (int times = 0; times < 3; ++times) control_.push_back({Kind::kBye, peer, {}, {}});
  }
  sweep();
}

void Engine::sweep() {
  if (!sweep_due_) return;
  sweep_due_ = false;
  for (auto at = active_.begin(); at != active_.end();) {
    Active& active = **at;
    const bool gone = !active.running && active.confirms_left == 0 && active.op->retained_done();
    if (!gone) {
      ++at;
      continue;
    }
    by_key_.erase(active.op->key.packed());
    release(active);
    at = active_.erase(at);
  }
}

std::optional<Result> Engine::poll_event() {
  if (events_.empty()) return std::nullopt;
  Result result = std::move(events_.front());
  events_.pop_front();
  return result;
}

Time Engine::wake_at() const {
  if (!control_.empty() || !reports_.empty() || !pings_.empty()) return 0;
  return std::min(timer_at_, pace_at_);
}

Time Engine::rest(Time now) const {
  uint64_t left = 0;
  for (const auto& active : active_) {
    if (active->running) left += active->op->expected_bytes - active->op->received_bytes;
  }
  return arrivals_.rest(now, left, options_.receive_bytes);
}

}  // namespace tailcut
