// Everything that happens because time passed. wake() may be called at any moment; wake_at() says when it is worth it.
#include <algorithm>

#include "engine/engine.hpp"

namespace tailcut {

namespace {
constexpr Time kLongestPause = 200 * kMillisecond;  // between repeated questions, once they have backed off
constexpr Time kLongestAsk = 50 * kMillisecond;     // likewise, where an operation waits for the answer
constexpr Time kGrace = 300 * kMillisecond;         // packets of a peer that said goodbye may still be on their way

// How many copies of a question that is asked once more: 1, 2, 4, 8, which gets through a burst of losses. Who has not answered then
// is late, not unreachable, and is asked in single packets.
uint32_t insisting(uint32_t& asks) {
  const uint32_t copies = asks < 4 ? 1u << asks : 1;
  ++asks;
  return copies;
}
}  // namespace

void Engine::wake(Time now) {
  if (now < timer_at_) return;
  check_pause(now);
  timer_at_ = kNever;
  check_operations(now);
  check_peers(now);
  sweep();
  if (!active_.empty()) wake_by(now + options_.liveness / 16);
}

// We asked to be woken long ago: this process, not the others, was away (SIGSTOP, a frozen VM, starvation). Accuse nobody.
void Engine::check_pause(Time now) {
  if (timer_at_ == kNever || now - timer_at_ < std::max(options_.liveness / 10, 100 * kMillisecond)) return;
  ++counters_.pauses;
  for (const auto& peer : peers_) {
    peer->heard_at = now;
    peer->progress_at = now;
    if (peer->needed_since != kNever) peer->needed_since = now;
  }
}

void Engine::check_operations(Time now) {
  std::vector<uint8_t> ask(peers_.size(), 0);
  for (size_t i = 0; i < active_.size(); ++i) {
    Active& active = *active_[i];
    if (active.running && now >= active.deadline) {
      Result cause;
      cause.code = ErrorCode::kTimeout;
      for (const Rank peer : active.op->part->peers) {
        if (active.entered[peer] == kNever && !stashed(active.op->key, peer)) cause.culprits.push_back(peer);
      }
      fail_operation(now, active, cause, true);
    }
    // Also to those who confirmed but have not entered: if they failed the operation and word of it was lost, they say so again.
    const bool unheard = active.confirms_left > 0 || (active.running && active.enters_left > 0);
    if (unheard && now >= active.enter_at) {
      const uint32_t copies = insisting(active.enter_asks);
      for (const Rank peer : active.op->part->peers) {
        const bool silent = active.running && active.entered[peer] == kNever;
        if ((active.confirmed[peer] && !silent) || peers_[peer]->closed) continue;
        control_.push_back({Kind::kEnter, peer, active.op->key, {}, false, true, copies});
        ++counters_.enters_resent;
      }
      active.enter_pause = std::min(active.enter_pause * 2, 2 * kLongestPause);
      active.enter_at = now + active.enter_pause;
    }
    if (unheard) wake_by(active.enter_at);
    if (active.running) {
      wake_by(active.deadline);
      check_recvs(now, active);
    }
    check_sends(now, active, ask);
  }
  for (Rank peer = 0; peer < peers_.size(); ++peer) {
    if (ask[peer]) pings_.push_back(peer);
  }
}

// Sent, but not confirmed: ask what arrived. Covers lost tails and lost reports, and empties the retained pool.
void Engine::check_sends(Time now, Active& active, std::vector<uint8_t>& ask) {
  for (SendState& send : active.op->sends) {
    if (send.done || send.next < send.packets) continue;
    if (now >= send.probe_at) {
      const Time base = peers_[send.step->peer]->control.rto();
      send.probe_pause = std::clamp<Time>(send.probe_pause * 2, base, std::max(base, kLongestPause));
      send.probe_at = now + send.probe_pause;
      Peer& peer = *peers_[send.step->peer];
      peer.ping_copies = std::max(peer.ping_copies, insisting(send.asks));
      if (!peer.closed) ask[send.step->peer] = 1;
    }
    wake_by(send.probe_at);
  }
}

// Expected, but nothing has come for a while: report what is here and ask for the rest.
void Engine::check_recvs(Time now, Active& active) {
  for (RecvState& recv : active.op->recvs) {
    if (recv.done || recv.quiet_at == kNever) continue;
    if (now >= recv.quiet_at) {
      const Time base = peers_[recv.step->peer]->control.rto();
      const Time longest = recv.asks < RecvState::kNoHurry ? kLongestAsk : kLongestPause;
      recv.quiet_pause = std::clamp<Time>(recv.quiet_pause * 2, base, std::max(base, longest));
      recv.quiet_at = now + recv.quiet_pause;
      recv.ask = true;
      Peer& peer = *peers_[recv.step->peer];
      peer.report_copies = std::max(peer.report_copies, insisting(recv.asks));
      queue_report(recv.step->peer);
    }
    wake_by(recv.quiet_at);
  }
}

// Whom we wait for, and for what: data or announcements (kOwes), confirmations while the operation runs (kQuiet), or after it (kKept).
void Engine::mark_needed(Time now) {
  constexpr uint8_t kOwes = 1, kQuiet = 2, kKept = 4;
  std::vector<uint8_t> needed(peers_.size(), 0);
  for (const auto& active : active_) {
    if (active->running) {
      for (const Rank peer : active->op->part->peers) needed[peer] |= active->entered[peer] == kNever ? kOwes : 0;
      for (const RecvState& recv : active->op->recvs) needed[recv.step->peer] |= recv.done ? 0 : kOwes;
    }
    const uint8_t mark = active->running ? kQuiet : kKept;
    for (const SendState& send : active->op->sends) needed[send.step->peer] |= send.done ? 0 : mark;
    for (const Rank peer : active->op->part->peers) needed[peer] |= active->confirmed[peer] ? 0 : mark;
  }
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (needed[rank] == 0) {
      peer.needed_since = kNever;
    } else if (peer.needed_since == kNever) {
      peer.needed_since = now;
    }
    peer.owes = needed[rank] & kOwes;
    peer.needed_by_running = needed[rank] & (kOwes | kQuiet);
  }
}

void Engine::check_peers(Time now) {
  mark_needed(now);
  Result dead;
  dead.code = ErrorCode::kPeerDead;
  Result gone;
  gone.code = ErrorCode::kClosed;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (rank == rank_) continue;
    if (now >= peer.report_at) queue_report(rank);
    wake_by(peer.report_queued ? kNever : peer.report_at);
    if (!failed_ && !active_.empty() && !peer.closed && (peer.in_flight() > 0 || peer.silent)) {
      const Time rto = peer.control.rto();
      if (now - peer.progress_at >= rto) {
        peer.control.on_silence();
        ++counters_.paths_silent;
        peer.given_up = peer.sent;
        peer.silent = true;
        peer.progress_at = now;
        pings_.push_back(rank);
      }
      wake_by(peer.progress_at + rto);
    }
    if (peer.needed_since == kNever) continue;
    const Time heard = std::max(peer.heard_at, peer.needed_since);
    if (peer.closed) {
      if (peer.owes && now - peer.closed_at > kGrace) gone.culprits.push_back(rank);
    } else if (now - heard >= options_.liveness) {
      if (peer.needed_by_running) {
        dead.culprits.push_back(rank);
      } else {
        peer.abandoned = true;
        forget_peer(rank);
      }
    } else if (now - heard > options_.liveness / 8) {
      // More often as the verdict comes closer: on a bad network a few questions in a row may get lost.
      const Time pause = now - heard > options_.liveness / 2 ? options_.liveness / 64 : options_.liveness / 8;
      if (now - peer.ping_at >= pause) {
        peer.ping_at = now;
        pings_.push_back(rank);
      }
      wake_by(peer.ping_at + pause);
    }
    wake_by(std::max(heard + options_.liveness, now + kMillisecond));
  }
  if (!dead.culprits.empty()) fail_group(now, dead, true);
  if (!gone.culprits.empty()) fail_group(now, gone, true);
}

}  // namespace tailcut
