#include "sim/network.hpp"

#include <algorithm>

namespace tailcut {

Network::Network(uint32_t size, uint32_t payload, const Options& options, const NetworkConfig& config)
    : config_(config), options_(options), random_(config.seed), hosts_(size), cut_(size_t{size} * size, false),
      transmit_(std::make_unique<Transmit>()) {
  for (uint32_t rank = 0; rank < size; ++rank) {
    engines_.push_back(std::make_unique<Engine>(7u, static_cast<Rank>(rank), std::vector<bool>(size, false), payload, options));
  }
}

uint64_t Network::start(Rank rank, std::shared_ptr<const Part> part, OpKey key, const Fingerprint& print, const void* input, void* output,
                        Time timeout) {
  const uint64_t ticket = engines_[rank]->start(now_, std::move(part), key, print, input, output, timeout);
  emit(rank);
  return ticket;
}

void Network::leave(Rank rank) {
  engines_[rank]->leave(now_);
  emit(rank);
  hosts_[rank].dead = true;
}

std::vector<Result> Network::results(Rank rank) {
  std::vector<Result> results;
  while (auto result = engines_[rank]->poll_event()) results.push_back(std::move(*result));
  return results;
}

void Network::emit(Rank rank) {
  if (hosts_[rank].dead || hosts_[rank].paused_until > now_) return;
  std::vector<uint8_t> whole;
  while (engines_[rank]->poll_transmit(now_, *transmit_)) {
    whole.clear();
    for (uint32_t i = 0; i < transmit_->pieces; ++i) {
      const Transmit::Piece& piece = transmit_->piece[i];
      whole.insert(whole.end(), piece.data, piece.data + piece.bytes);
    }
    for (size_t at = 0; at < whole.size(); at += transmit_->segment_bytes) {
      send(rank, transmit_->to, whole.data() + at, std::min<size_t>(transmit_->segment_bytes, whole.size() - at));
    }
  }
}

// A port: bytes leave one after the other; what finds the queue full is dropped.
bool Network::pass_port(Time& free, size_t bytes, Time& at) {
  if (config_.rate <= 0) return true;
  const double size = static_cast<double>(bytes + config_.overhead_bytes);
  const Time start = std::max(free, at);
  if (static_cast<double>(start - at) * config_.rate / 1e9 + size > static_cast<double>(config_.queue_bytes)) {
    ++dropped_queue_;
    return false;
  }
  free = start + static_cast<Time>(size / config_.rate * 1e9);
  at = free;
  return true;
}

void Network::send(Rank from, Rank to, const uint8_t* bytes, size_t length) {
  Time at = now_;
  if (!pass_port(hosts_[from].out_free, length, at)) return;
  if (cut_[from * size() + to] || draw() < config_.loss) {
    ++dropped_loss_;
    return;
  }
  std::vector<uint8_t> datagram(bytes, bytes + length);
  const int copies = config_.duplicate > 0 && draw() < config_.duplicate ? 2 : 1;
  if (config_.corrupt > 0 && draw() < config_.corrupt) datagram[random_() % length] ^= static_cast<uint8_t>(1u << random_() % 8);
  for (int copy = 0; copy < copies; ++copy) {
    const Time jitter = config_.jitter > 0 ? static_cast<Time>(draw() * static_cast<double>(config_.jitter)) : 0;
    launch(from, to, datagram, at + config_.latency + jitter);
  }
}

void Network::launch(Rank from, Rank to, std::vector<uint8_t> bytes, Time at) {
  auto flight = std::make_shared<Flight>();
  flight->at = at;
  flight->order = ++order_;
  flight->to = to;
  flight->from = from;
  flight->bytes = std::move(bytes);
  flights_.push(std::move(flight));
}

void Network::inject(Rank to, Rank from, std::vector<uint8_t> datagram) { launch(from, to, std::move(datagram), now_); }

void Network::arrive(const std::shared_ptr<Flight>& flight) {
  Host& host = hosts_[flight->to];
  if (host.dead) return;
  if (!flight->queued) {
    flight->queued = true;
    Time at = flight->at;
    if (!pass_port(host.in_free, flight->bytes.size(), at)) return;
    if (at > flight->at) {
      flight->at = at;
      flight->order = ++order_;
      flights_.push(flight);
      return;
    }
  }
  if (host.paused_until > now_) {
    if (host.waiting_bytes + flight->bytes.size() > options_.receive_bytes) {
      ++dropped_queue_;
      return;
    }
    host.waiting_bytes += flight->bytes.size();
    host.waiting.push_back(flight);
    return;
  }
  ++delivered_;
  for (const uint8_t byte : {static_cast<uint8_t>(flight->to), static_cast<uint8_t>(flight->from), static_cast<uint8_t>(now_),
                             static_cast<uint8_t>(flight->bytes.size()), flight->bytes[0]}) {
    digest_ = (digest_ ^ byte) * 1099511628211ull;
  }
  engines_[flight->to]->receive(now_, flight->at, flight->from, flight->bytes.data(), flight->bytes.size());
  emit(flight->to);
}

void Network::resume(Rank rank) {
  Host& host = hosts_[rank];
  host.paused_until = 0;
  auto waiting = std::move(host.waiting);
  host.waiting.clear();
  host.waiting_bytes = 0;
  for (const auto& flight : waiting) arrive(flight);
}

bool Network::run(Time until) {
  while (true) {
    Time next = flights_.empty() ? kNever : flights_.top()->at;
    Rank waker = kNoRank;
    for (Rank rank = 0; rank < size(); ++rank) {
      if (hosts_[rank].dead) continue;
      Time at = std::max(engines_[rank]->wake_at(), now_);
      if (hosts_[rank].paused_until > now_) at = hosts_[rank].paused_until;
      if (at < next) {
        next = at;
        waker = rank;
      }
    }
    if (next == kNever) return true;
    if (next > until) {
      now_ = std::max(now_, until);
      return false;
    }
    now_ = std::max(now_, next);
    if (waker == kNoRank) {
      const auto flight = flights_.top();
      flights_.pop();
      arrive(flight);
      continue;
    }
    if (hosts_[waker].paused_until != 0 && hosts_[waker].paused_until <= now_) resume(waker);
    engines_[waker]->wake(now_);
    emit(waker);
  }
}

}  // namespace tailcut
