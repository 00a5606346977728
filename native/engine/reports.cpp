// Reports: snapshots of what a receiver has. They acknowledge, ask for repair, measure the path and answer pings, all in one packet.
// A sender repairs only what cannot still be on its way, so hearing a report late or twice does no harm.
#include <algorithm>
#include <cstring>

#include "engine/engine.hpp"

namespace tailcut {

namespace {
constexpr uint32_t kFewPackets = 8;
constexpr uint32_t kMostCopies = 8u;
constexpr uint32_t kReorder = 3;                    // packets seen after one that is missing before it counts as lost
constexpr Time kMaxHold = 400 * kMillisecond;       // beyond it the 16-bit stamp is ambiguous: no sample
constexpr uint64_t kLeastWindow = 4;                // packets that a peer may always have on their way to us
constexpr Time kSenderMemory = 20 * kMillisecond;   // a peer that sent data this recently shares the receive buffer
}  // namespace

void Engine::due(Rank to, Time at) {
  Peer& peer = *peers_[to];
  peer.report_at = std::min(peer.report_at, at);
  wake_by(peer.report_at);
}

void Engine::queue_report(Rank to) {
  if (peers_[to]->report_queued) return;
  peers_[to]->report_queued = true;
  reports_.push_back(to);
}

void Engine::note(Rank to, OpKey key, uint16_t transfer, uint8_t flags, Time now, Time at) {
  Peer& peer = *peers_[to];
  if (peer.notes.size() < Peer::kMaxNotes) peer.notes.push_back({key, transfer, flags});  // else the peer asks again
  if (at <= now) {
    queue_report(to);
  } else {
    due(to, at);
  }
}

uint32_t Engine::window_for(Time now, const Peer& to) const {
  uint64_t senders = 0;
  for (const auto& peer : peers_) senders += peer->data_at != 0 && now - peer->data_at < kSenderMemory;
  const uint64_t more = peers_.size() > 2 ? 1 : 0;  // leave room for one that is about to begin
  const uint64_t each = options_.receive_bytes / std::max<uint64_t>(senders + more, 1);
  if (to.local) return static_cast<uint32_t>(each);
  const uint64_t enough = arrivals_.enough(to.control.min_rtt(), senders, more);
  return static_cast<uint32_t>(std::min(each, std::max<uint64_t>(enough, kLeastWindow * geometry_.payload)));
}

void Engine::build_report(Time now, Rank to, Transmit& out) {
  Peer& peer = *peers_[to];
  begin_control(now, Kind::kReport, to, {}, out);
  uint8_t* body = out.control + kHeaderBytes;
  size_t used = kPathStateBytes;
  uint16_t entries = 0;
  size_t taken = 0;
  for (; taken < peer.notes.size() && used + kEntryBytes <= kControlBytes / 2; ++taken) {
    const Peer::Note& told = peer.notes[taken];
    encode(ReportEntry{told.key, told.transfer, told.flags, 0, 0, 0}, body + used);
    used += kEntryBytes;
    ++entries;
  }
  peer.notes.erase(peer.notes.begin(), peer.notes.begin() + static_cast<std::ptrdiff_t>(taken));
  used += add_progress(now, to, body + used, kControlBytes - used, entries);
  PathState state;
  state.largest = peer.seen;
  state.received = peer.received;
  state.stamp = peer.stamp;
  state.hold_us = static_cast<uint32_t>(std::clamp<Time>((now - peer.stamp_at) / kMicrosecond, 0, 0xFFFFFF));
  state.window = window_for(now, peer);
  encode(state, entries, body);
  peer.unreported = 0;
  peer.report_at = kNever;
  if (!peer.notes.empty()) due(to, now);
  ++counters_.reports_sent;
  finish_control(out, used);
}

size_t Engine::add_progress(Time, Rank to, uint8_t* at, size_t room, uint16_t& entries) {
  size_t used = 0;
  for (const auto& active : active_) {
    if (!active->running) continue;
    for (const uint32_t index : active->op->part->recvs_from(to)) {
      RecvState& recv = active->op->recvs[index];
      if (recv.done || (recv.received == 0 && !recv.ask)) continue;
      uint8_t flags = recv.ask ? kAsking : 0;
      if (active->entered[to] != kNever) flags |= kEntered;
      const size_t size = add_entry(*active, recv, flags, at + used, room - used);
      if (size == 0) return used;  // full: the rest comes with the next report
      if (size > kEntryBytes && far(*peers_[to])) peers_[to]->report_copies = std::max<uint32_t>(peers_[to]->report_copies, 2);
      recv.ask = false;
      used += size;
      ++entries;
    }
  }
  return used;
}

size_t Engine::add_entry(const Active& active, const RecvState& recv, uint8_t flags, uint8_t* at, size_t room) {
  if (room < kEntryBytes + kRangeBytes) return 0;
  ReportEntry entry{active.op->key, recv.step->transfer, flags, 0, recv.prefix, recv.high};
  size_t used = kEntryBytes;
  const uint32_t per_block = geometry_.block_packets;
  uint32_t packet = recv.prefix;
  while (packet < recv.high && used + kRangeBytes <= room && entry.ranges < 255) {
    const auto missing = [&](uint32_t p) { return (recv.have[p / per_block] >> p % per_block & 1) == 0; };
    while (packet < recv.high && !missing(packet)) ++packet;
    const uint32_t first = packet;
    while (packet < recv.high && missing(packet) && packet - first < 0xFFFF) ++packet;
    if (packet == first) break;
    store<uint32_t>(at + used, first);
    store<uint16_t>(at + used + 4, static_cast<uint16_t>(packet - first));
    used += kRangeBytes;
    ++entry.ranges;
  }
  encode(entry, at);
  return used;
}

void Engine::on_report(Time now, Time arrived, Rank from, uint16_t stamp, const uint8_t* body, size_t bytes) {
  ++counters_.reports_received;
  if (bytes < kPathStateBytes) {
    ++counters_.dropped_malformed;
    return;
  }
  uint16_t entries = 0;
  const PathState state = decode_path_state(body, entries);
  const bool believable = static_cast<int32_t>(state.largest - peers_[from]->sent) <= 0;  // else it claims what we never sent
  if (believable) {
    on_path_state(now, arrived, from, stamp, state);
  } else {  // somebody fooled it with a path number; what it says of transfers is still good, and the path must not stall
    ++counters_.dropped_malformed;
    peers_[from]->silent = false;
    peers_[from]->given_up = peers_[from]->sent;
  }
  const uint32_t seen = believable ? state.largest : peers_[from]->reported;
  size_t at = kPathStateBytes;
  for (uint16_t i = 0; i < entries; ++i) {
    if (at + kEntryBytes > bytes) {
      ++counters_.dropped_malformed;
      return;
    }
    const ReportEntry entry = decode_entry(body + at);
    const size_t size = kEntryBytes + size_t{entry.ranges} * kRangeBytes;
    if (at + size > bytes) {
      ++counters_.dropped_malformed;
      return;
    }
    on_entry(now, from, entry, body + at + kEntryBytes, seen);
    at += size;
  }
  if (!held_back_) return;
  sweep();
  held_back_ = false;
  for (const auto& active : active_) try_complete(now, *active);
}

void Engine::on_path_state(Time now, Time arrived, Rank from, uint16_t stamp, const PathState& state) {
  Peer& peer = *peers_[from];
  const auto advance = static_cast<int32_t>(state.largest - peer.reported);
  if (advance < 0) return;  // an old report overtaken by a newer one
  const auto newly = static_cast<int32_t>(state.received - peer.reported_received);
  PathFeedback feedback;
  feedback.now = now;
  feedback.delivered = static_cast<uint32_t>(std::clamp(newly, 0, std::max(advance, 0)));
  feedback.lost = static_cast<uint32_t>(advance) - feedback.delivered;
  feedback.largest = state.largest;
  feedback.next = peer.sent + 1;
  feedback.limited = peer.was_limited;
  feedback.peer_window = state.window;
  if (feedback.limited) port_.hold_back();
  const auto arrived_there = static_cast<uint16_t>(stamp - Time{state.hold_us} * kMicrosecond / kStampUnit);  // ticks of its clock
  if (!peer.local && advance > 0) peer.meter.add(now, static_cast<uint32_t>(advance), arrived_there, state.largest == peer.sent);
  if (!peer.local && port_.bin_over(now, static_cast<uint32_t>(advance))) adjust_port(now);
  feedback.squeezed = port_.squeezed();
  feedback.turn = port_.turn();
  feedback.queue_share = port_.queue_share();
  const Time hold = Time{state.hold_us} * kMicrosecond;
  if (hold < kMaxHold) {
    const Time loop = Time{static_cast<uint16_t>(stamp_of(now) - state.stamp)} * kStampUnit;
    const Time network = Time{static_cast<uint16_t>(stamp_of(arrived) - state.stamp)} * kStampUnit - hold;
    if (loop >= hold && network >= -kStampUnit && loop < kMaxHold) {
      feedback.loop_rtt = loop;
      feedback.network_rtt = std::max<Time>(network, 0);
      feedback.forward = static_cast<uint16_t>(arrived_there - state.stamp);
    }
  }
  peer.control.on_report(feedback);
  peer.reported = state.largest;
  peer.reported_received = state.received;
  peer.was_limited = false;
  peer.silent = false;
  if (advance > 0 || peer.in_flight() == 0) peer.progress_at = now;  // a report that confirms nothing is no progress
  peer.packets_lost += feedback.lost;
  counters_.packets_lost += feedback.lost;
}

// The port's queue is on every path: the shortest queue of any path in use is at least not longer than it. A path that carries next
// to nothing tells little of the queue, and that late.
void Engine::adjust_port(Time now) {
  Port::Bin bin;
  std::vector<double> rates(peers_.size(), 0);  // bytes per nanosecond that got through
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (peer.local || peer.sent == 0) continue;
    const PathMeter::Flow flow = peer.meter.take(now - port_.bin_begun());
    rates[rank] = flow.rate * (geometry_.payload + static_cast<double>(kHeaderBytes));
    bin.passed += rates[rank];
    bin.steady += flow.steady ? rates[rank] : 0;
  }
  const double most = *std::max_element(rates.begin(), rates.end());
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = *peers_[rank];
    if (rates[rank] < most / 8 || rates[rank] == 0 || now - peer.progress_at > 2 * Port::kBin) continue;
    ++bin.paths;
    bin.queue = std::min(bin.queue, peer.control.queue_delay());
    bin.jitter = std::max(bin.jitter, peer.control.jitter());
  }
  port_.adjust(now, bin);
}

void Engine::on_entry(Time now, Rank from, const ReportEntry& entry, const uint8_t* ranges, uint32_t seen) {
  Active* active = find(entry.key);
  if (active == nullptr) {
    if ((entry.flags & kAsking) == 0 || !is_over(entry.key) || tell_if_failed(from, entry.key)) return;
    if (peers_[from]->abandoned) {  // it is back too late, and should know why
      Result cause;
      cause.code = ErrorCode::kPeerDead;
      cause.culprits = {from};
      tell(from, entry.key, cause, true);
    } else {
      note(from, entry.key, entry.transfer, kGoneFlag, now, now);
    }
    return;
  }
  if (entry.flags & kEntered) confirm(*active, from);
  if (entry.transfer == kNoTransfer) {
    if (entry.flags & kAsking) control_.push_back({Kind::kEnter, from, entry.key, {}, false, true});
    return;
  }
  if (entry.flags & (kNotYet | kGoneFlag)) {
    on_receiver_entry(now, *active, from, entry);
    return;
  }
  const int index = active->op->part->find_send(from, entry.transfer);
  if (index < 0) {
    ++counters_.dropped_unexpected;
    return;
  }
  SendState& send = active->op->sends[index];
  if (send.done) return;
  if (entry.flags & kDone) {
    send.done = true;
    send.acked = send.packets;
    send.resend_count = 0;
    settle_retained(*active);
    return;
  }
  if (entry.prefix > entry.high || entry.high > send.next) {
    ++counters_.dropped_malformed;
    return;
  }
  if (entry.prefix > send.acked) {
    send.probe_pause = 0;
    send.asks = 0;
  }
  send.acked = std::max(send.acked, entry.prefix);
  for (uint8_t i = 0; i < entry.ranges; ++i) {
    const uint32_t first = load<uint32_t>(ranges + i * kRangeBytes);
    const uint32_t count = load<uint16_t>(ranges + i * kRangeBytes + 4);
    if (first >= entry.high || count > entry.high - first) {
      ++counters_.dropped_malformed;
      return;
    }
    repair(now, *active, send, first, count, seen, from);
  }
  if (entry.flags & kAsking) {
    repair(now, *active, send, entry.high, send.next - entry.high, seen, from);
    // Asked again and again without progress: repairs get lost too. More of it has a better chance, as long as it is little.
    send.again = send.asked == entry.prefix && send.resend_count > 0 ? send.again + 1 : 0;
    send.asked = entry.prefix;
    send.copies = send.again >= 2 && send.resend_count <= kFewPackets ? std::min(1u << std::min(send.again - 1, 8u), kMostCopies) : 1;
    if (send.resend_count == 0 && send.next == send.ready && send.next < send.packets) {
      note(from, entry.key, entry.transfer, kNotYet, now, now);
    }
  }
}

// Marks packets to be sent again, unless their block's newest packet may still be on its way.
void Engine::repair(Time now, Active& active, SendState& send, uint32_t first, uint32_t count, uint32_t seen, Rank peer) {
  const uint32_t per_block = geometry_.block_packets;
  const auto now_us = static_cast<uint32_t>(now / kMicrosecond);
  const RateControl& control = peers_[peer]->control;
  const uint32_t newest = peers_[peer]->sent;
  // On one host a report that is late says that somebody waits for a core, not that anything got lost.
  const Time patience = peers_[peer]->local ? control.rto() : control.loop() + control.loop() / 4 + kMillisecond;
  const auto patience_us = static_cast<uint32_t>(patience / kMicrosecond);
  if (send.resend.empty()) send.resend.assign(send.sent.size(), 0);
  const uint32_t end = first + count;
  for (uint32_t packet = std::max(first, send.acked); packet < end;) {
    const uint32_t block = packet / per_block;
    const uint32_t stop = std::min(end, (block + 1) * per_block);
    const SendState::Sent& sent = send.sent[block];
    // When the newest of all has arrived, nothing is left to overtake what is missing.
    const bool overtaken = seen == newest || static_cast<int32_t>(seen - sent.path) >= static_cast<int32_t>(kReorder);
    if (overtaken || now_us - sent.at_us > patience_us) {
      for (; packet < stop; ++packet) {
        const uint64_t bit = uint64_t{1} << packet % per_block;
        send.resend_count += (send.resend[block] & bit) == 0;
        send.resend[block] |= bit;
      }
      send.resend_from = std::min(send.resend_from, block);
    }
    packet = stop;
  }
  const auto index = static_cast<uint32_t>(&send - active.op->sends.data());
  if (send.resend_count > 0) active.op->send_cursor = std::min(active.op->send_cursor, index);
}

// The sender of a transfer answers that it cannot serve us now, or never again.
void Engine::on_receiver_entry(Time now, Active& active, Rank from, const ReportEntry& entry) {
  const int index = active.op->part->find_recv(from, entry.transfer);
  if (index < 0 || !active.running) return;
  RecvState& recv = active.op->recvs[index];
  if (recv.done) return;
  if (entry.flags & kGoneFlag) {
    Result cause;
    cause.code = ErrorCode::kGone;
    cause.culprits = {from};
    fail_operation(now, active, cause, true);
    return;
  }
  recv.asks = RecvState::kNoHurry;
  recv.quiet_pause = 100 * kMillisecond;  // it will come by itself; ask again only in case it got lost
  recv.quiet_at = now + recv.quiet_pause;
}

}  // namespace tailcut
