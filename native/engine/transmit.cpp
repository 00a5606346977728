// What to send next: control packets first, then data in the order of operations and of their Plans, as windows and pacing allow.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/engine.hpp"

namespace tailcut {

namespace {
constexpr uint64_t kMaxCallBytes = 65507;       // of one send call with GSO, and of one datagram
constexpr Time kCredit = 250 * kMicrosecond;   // what has nothing to wait for may leave so far ahead of its pace
constexpr Time kCatchUp = 2 * kMillisecond;    // what waited may make good so much of a late wake-up, as on a busy host
}  // namespace

bool Engine::poll_transmit(Time now, Transmit& out) {
  out.pieces = out.segments = out.bytes = out.segment_bytes = 0;
  if (transmit_control(now, out) || transmit_data(now, out)) {
    counters_.packets_sent += out.segments;
    return true;
  }
  return false;
}

void Engine::begin_control(Time now, Kind kind, Rank to, OpKey key, Transmit& out) {
  Header header;
  header.kind = kind;
  header.source = rank_;
  header.group = group_;
  header.key = key;
  header.stamp = stamp_of(now);
  encode(header, out.control);
  out.to = to;
}

void Engine::finish_control(Transmit& out, size_t body_bytes) {
  out.bytes = static_cast<uint32_t>(kHeaderBytes + body_bytes);
  out.segment_bytes = out.bytes;
  out.segments = out.pieces = 1;
  out.piece[0] = {out.control, out.bytes};
}

// The same packet several times: what is asked again without an answer may be on a path that loses many in a row.
void Engine::repeat_control(uint32_t copies, Transmit& out) {
  if (copies <= 1) return;
  const uint32_t bytes = out.bytes;
  for (uint32_t copy = 0; copy < copies; ++copy) {
    out.piece[2 * copy] = {out.control, kHeaderBytes};
    out.piece[2 * copy + 1] = {out.control + kHeaderBytes, bytes - static_cast<uint32_t>(kHeaderBytes)};
  }
  out.pieces = 2 * copies;
  out.segments = copies;
  out.bytes = copies * bytes;
}

bool Engine::transmit_control(Time now, Transmit& out) {
  while (!control_.empty()) {
    const Outgoing item = std::move(control_.front());
    control_.pop_front();
    if (item.kind == Kind::kEnter) {
      const Active* active = find(item.key);
      if (active == nullptr || (active->confirmed[item.to] && !item.asked)) continue;
    }
    build_control(now, item, out);
    repeat_control(item.copies, out);
    return true;
  }
  if (!reports_.empty()) {
    const Rank to = reports_.front();
    reports_.pop_front();
    peers_[to]->report_queued = false;
    build_report(now, to, out);
    repeat_control(std::exchange(peers_[to]->report_copies, 1), out);
    return true;
  }
  if (!pings_.empty()) {
    const Rank to = pings_.front();
    pings_.pop_front();
    build_ping(now, to, out);
    repeat_control(std::exchange(peers_[to]->ping_copies, far(*peers_[to]) ? 2 : 1), out);
    return true;
  }
  return false;
}

void Engine::build_control(Time now, const Outgoing& item, Transmit& out) {
  begin_control(now, item.kind, item.to, item.key, out);
  uint8_t* body = out.control + kHeaderBytes;
  if (item.kind == Kind::kEnter) {
    encode(find(item.key)->op->print, body);
    finish_control(out, kEnterBytes);
    return;
  }
  if (item.kind == Kind::kFail) {
    body[0] = static_cast<uint8_t>(item.fail.code);
    body[1] = item.group_scope ? 1 : 0;
    store<uint16_t>(body + 2, item.fail.culprits.empty() ? kNoRank : item.fail.culprits.front());
    encode(item.fail.ours, body + 4);
    encode(item.fail.theirs, body + 4 + kEnterBytes);
    finish_control(out, kFailBytes);
    return;
  }
  finish_control(out, 0);
}

void Engine::build_ping(Time now, Rank to, Transmit& out) {
  begin_control(now, Kind::kPing, to, {}, out);
  if (far(*peers_[to])) {  // what it has not seen by now got lost; nearby, asking again is quick and a full queue may be the reason
    out.control[1] = kPathCounts << 4;
    store<uint16_t>(out.control + kPathAt, static_cast<uint16_t>(peers_[to]->sent));
  }
  uint8_t* body = out.control + kHeaderBytes;
  uint16_t count = 0;
  for (const auto& active : active_) {
    for (const SendState& send : active->op->sends) {
      if (send.done || send.step->peer != to || send.next < send.packets || count >= 64) continue;
      uint8_t* at = body + 2 + kPingEntryBytes * count++;
      store<uint32_t>(at, active->op->key.sequence);
      store<uint16_t>(at + 4, active->op->key.tag);
      store<uint16_t>(at + 6, send.step->transfer);
    }
  }
  store<uint16_t>(body, count);
  ++counters_.pings_sent;
  finish_control(out, 2 + kPingEntryBytes * count);
}

bool Engine::may_send(Time now, Peer& peer) {
  if (peer.silent || peer.closed) return false;
  if (peer.in_flight() >= peer.control.window_packets()) {
    peer.was_limited = true;
    return false;
  }
  const bool paced = !peer.local && !peer.control.contending();
  const Time at = paced ? std::max({peer.send_at, peer.share_at, port_.send_at()}) : peer.send_at;
  if (now >= at) return true;
  peer.waiting = true;
  if (paced && now < port_.send_at()) port_.wait();
  pace_at_ = std::min(pace_at_, at);
  return false;
}

// The oldest operation first. Within it the lowest stage, for others wait for it, and there the send that has come least far: peers
// are served in turn, so that blocks become complete everywhere at the same pace and the next stage can begin early. What goes to one
// peer keeps the order of the Plan: around a ring everybody waits for the earliest. At most `incast` peers are served side by side;
// the order of the Plan spreads these over receivers.
bool Engine::transmit_data(Time now, Transmit& out) {
  pace_at_ = kNever;
  for (size_t i = 0; i < active_.size(); ++i) {
    Active& active = *active_[i];
    Operation& op = *active.op;
    SendState* best = nullptr;
    uint32_t beside = 0;
    ++look_;
    for (uint32_t index = op.send_cursor; index < op.sends.size() && beside < options_.incast; ++index) {
      SendState& send = op.sends[index];
      if (!has_work(send)) {
        if (index == op.send_cursor && (send.next == send.packets || send.done)) ++op.send_cursor;
        continue;
      }
      Peer& peer = *peers_[send.step->peer];
      if (!active.eager && active.entered[send.step->peer] == kNever) continue;
      const bool first = peer.look != look_;
      if (!peer.silent && first) {
        peer.look = look_;
        ++beside;
      }
      if (!first && send.resend_count == 0) continue;
      if (!may_send(now, peer)) continue;
      if (best == nullptr || precedes(send, *best)) best = &send;
    }
    if (beside > 0) beside_ = beside;
    if (best != nullptr && fill(now, i, static_cast<uint32_t>(best - op.sends.data()), out)) return true;
  }
  return false;
}

bool Engine::precedes(const SendState& a, const SendState& b) {
  if ((a.resend_count > 0) != (b.resend_count > 0)) return a.resend_count > 0;
  if (a.step->stage != b.step->stage) return a.step->stage < b.step->stage;
  return a.next < b.next;
}

// Fills one batch to the peer of the given send, with it and with whatever else is ready for that peer, up to one burst.
bool Engine::fill(Time now, size_t active_index, uint32_t send_index, Transmit& out) {
  const Rank to = active_[active_index]->op->sends[send_index].step->peer;
  Peer& peer = *peers_[to];
  out.to = to;
  out.segment_bytes = geometry_.payload + static_cast<uint32_t>(kHeaderBytes);
  const uint32_t window = peer.control.window_packets() - peer.in_flight();
  const uint32_t budget = std::min(window, Transmit::kMaxSegments);
  uint64_t bytes_left = peer.control.burst_bytes();
  if (!peer.local) bytes_left = std::min(bytes_left, port_.burst_bytes());
  bytes_left = std::max<uint64_t>(bytes_left, out.segment_bytes);
  bytes_left = std::min<uint64_t>(bytes_left, kMaxCallBytes);
  if (peer.in_flight() == 0) peer.progress_at = now;
  for (size_t i = active_index; i < active_.size() && bytes_left > 0; ++i) {
    Active& active = *active_[i];
    for (uint32_t k = i == active_index ? send_index : active.op->send_cursor; k < active.op->sends.size(); ++k) {
      SendState& send = active.op->sends[k];
      if (send.step->peer != to || !has_work(send)) continue;
      if (!active.eager && active.entered[to] == kNever) continue;
      if (!take_packets(now, active, send, out, budget, bytes_left)) break;
    }
    if (out.segments > 0 && out.bytes % out.segment_bytes != 0) break;  // a short packet ends a batch
  }
  if (out.segments == 0) return false;
  if (out.segments == 1) out.segment_bytes = out.bytes;
  if (peer.in_flight() >= peer.control.window_packets()) {
    peer.was_limited = true;
    if (peer.sent - peer.hurried >= std::max<uint32_t>(peer.control.window_packets() / 2, 2)) {  // twice a window keeps it moving
      out.headers[out.segments - 1][1] |= kReportNow << 4;
      peer.hurried = peer.sent;
    }
  }
  const Time least = now - (peer.waiting ? kCatchUp : kCredit);
  peer.waiting = false;
  peer.send_at = std::max(peer.send_at, least) + peer.control.spacing(out.bytes);
  if (!peer.local) {
    peer.share_at = std::max(peer.share_at, least) + port_.share_spacing(out.bytes, beside_);
    port_.sent(now, out.bytes);
  }
  wake_by(now + peer.control.rto());
  return true;
}

// Repairs before first-time data. Returns 0 when the batch can take no more.
uint32_t Engine::take_packets(Time now, Active& active, SendState& send, Transmit& out, uint32_t budget, uint64_t& bytes_left) {
  const uint32_t per_block = geometry_.block_packets;
  const uint32_t segment = out.segment_bytes;
  const uint32_t least = far(*peers_[send.step->peer]) ? 2 : 1;
  const auto room = [&] { return out.segments < budget && bytes_left >= segment && out.bytes % segment == 0; };
  while (send.resend_count > 0 && room()) {
    while (send.resend[send.resend_from] == 0) ++send.resend_from;
    uint64_t& word = send.resend[send.resend_from];
    const uint32_t packet = send.resend_from * per_block + static_cast<uint32_t>(std::countr_zero(word));
    word &= word - 1;
    --send.resend_count;
    if (packet < send.acked) continue;
    const uint32_t copies = std::max(send.copies, least);
    for (uint32_t copy = 0; copy < copies && (copy == 0 || room()); ++copy) {
      put_packet(now, active, send, packet, copy == 0 ? Sending::kAgain : Sending::kCopy, out);
      bytes_left -= segment;
    }
  }
  while (send.next < send.ready && room()) {
    put_packet(now, active, send, send.next++, Sending::kFirst, out);
    bytes_left -= segment;
    if (send.next < send.packets) continue;
    --active.op->sends_left;
    const Peer& peer = *peers_[send.step->peer];
    send.probe_at = now + (far(peer) ? peer.control.tail_probe() : peer.control.tail_timeout());
    wake_by(send.probe_at);
    if (send.packets >= 16) out.headers[out.segments - 1][1] |= kReportNow << 4;
    if (active.op->sends_left == 0) try_complete(now, active);  // the driver tells the caller only after this batch has left
  }
  return room() ? 1 : 0;
}

void Engine::put_packet(Time now, Active& active, SendState& send, uint32_t packet, Sending sending, Transmit& out) {
  Peer& peer = *peers_[send.step->peer];
  ++peer.sent;
  Header header;
  header.kind = Kind::kData;
  header.flags = sending == Sending::kFirst ? 0 : kRepair;
  if (packet + std::max<uint32_t>(1, send.packets / 100) >= send.packets) header.flags |= kLastPart;
  header.source = rank_;
  header.group = group_;
  header.key = active.op->key;
  header.transfer = send.step->transfer;
  header.offset = packet;
  header.stamp = stamp_of(now);
  header.path = static_cast<uint16_t>(peer.sent);
  uint8_t* at = out.headers[out.segments++];
  encode(header, at);
  const auto bytes = static_cast<uint32_t>(send.bytes_of(packet, geometry_.payload));
  out.piece[out.pieces++] = {at, kHeaderBytes};
  out.piece[out.pieces++] = {send.data + uint64_t{packet} * geometry_.payload, bytes};
  out.bytes += static_cast<uint32_t>(kHeaderBytes) + bytes;
  send.sent[packet / geometry_.block_packets] = {peer.sent, static_cast<uint32_t>(now / kMicrosecond)};
  peer.bytes_sent += bytes;
  counters_.data_sent += sending == Sending::kFirst;
  counters_.data_resent += sending == Sending::kAgain;
  counters_.data_copied += sending == Sending::kCopy;
  active.resent += sending != Sending::kFirst;
}

}  // namespace tailcut
