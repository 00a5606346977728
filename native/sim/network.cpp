#include "sim/network.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tailcut {

namespace {
constexpr uint32_t kMaxSpins = 100'000;  // wake-ups of one moment: more than any number of ranks and batches explains
}  // namespace

Network::Network(uint32_t size, uint32_t payload, const Options& options, const NetworkConfig& config)
    : config_(config), options_(options), random_(config.seed), hosts_(size), paths_(size_t{size} * size),
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

void Network::drop(uint64_t& reason, const uint8_t* bytes, size_t length) {
  ++reason;
  dropped_data_ += length > 0 && (bytes[0] & 0xF) == static_cast<uint8_t>(Kind::kData);
}

// A port: bytes leave one after the other; what finds the queue full is dropped.
bool Network::pass_port(Time& free, const uint8_t* bytes, size_t length, Time& at) {
  if (config_.rate <= 0) return true;
  const double size = static_cast<double>(length + config_.overhead_bytes);
  const Time start = std::max(free, at);
  if (static_cast<double>(start - at) * config_.rate / 1e9 + size > static_cast<double>(config_.queue_bytes)) {
    drop(dropped_queue_, bytes, length);
    return false;
  }
  free = start + static_cast<Time>(size / config_.rate * 1e9);
  at = free;
  return true;
}

bool Network::in_burst(Path& path, Time at) {
  if (config_.burst_gap <= 0) return false;
  while (path.turn_at <= at) {
    path.bad = !path.bad;
    const auto mean = static_cast<double>(path.bad ? config_.burst_length : config_.burst_gap);
    path.turn_at += 1 + static_cast<Time>(std::exponential_distribution<double>(1 / mean)(random_));
  }
  return path.bad;
}

bool Network::lose(Path& path, Time at) {
  return draw() < (path.loss >= 0 ? path.loss : config_.loss) || path.cut || in_burst(path, at);
}

void Network::flip(std::vector<uint8_t>& datagram) {
  const auto turn = [&](size_t from) {
    datagram[from + random_() % (datagram.size() - from)] ^= static_cast<uint8_t>(1u << random_() % 8);
    ++flipped_;
  };
  if (config_.corrupt > 0 && draw() < config_.corrupt) turn(0);
  const bool data = (datagram[0] & 0xF) == static_cast<uint8_t>(Kind::kData) && datagram.size() > kHeaderBytes;
  if (config_.flip_payload > 0 && data && draw() < config_.flip_payload) turn(kHeaderBytes);
}

void Network::send(Rank from, Rank to, const uint8_t* bytes, size_t length) {
  if (capturing_) captured_.push_back({now_, from, to, {bytes, bytes + length}});
  Time at = now_;
  if (!pass_port(hosts_[from].out_free, bytes, length, at)) return;
  if (lose(path(from, to), at)) {
    drop(dropped_loss_, bytes, length);
    return;
  }
  std::vector<uint8_t> datagram(bytes, bytes + length);
  const int copies = config_.duplicate > 0 && draw() < config_.duplicate ? 2 : 1;
  duplicated_ += static_cast<uint64_t>(copies - 1);
  flip(datagram);
  for (int copy = 0; copy < copies; ++copy) {
    const Time jitter = config_.jitter > 0 ? static_cast<Time>(draw() * static_cast<double>(config_.jitter)) : 0;
    launch(from, to, datagram, at + config_.latency + jitter, false);
  }
}

void Network::launch(Rank from, Rank to, std::vector<uint8_t> bytes, Time at, bool past_port) {
  auto flight = std::make_shared<Flight>();
  flight->at = at;
  flight->order = ++order_;
  flight->to = to;
  flight->from = from;
  flight->queued = past_port;
  flight->bytes = std::move(bytes);
  flights_.push(std::move(flight));
}

void Network::inject(Rank to, Rank from, std::vector<uint8_t> datagram) { launch(from, to, std::move(datagram), now_, true); }

void Network::arrive(const std::shared_ptr<Flight>& flight) {
  Host& host = hosts_[flight->to];
  if (host.dead) return;
  if (!flight->queued) {
    flight->queued = true;
    Time at = flight->at;
    if (!pass_port(host.in_free, flight->bytes.data(), flight->bytes.size(), at)) return;
    if (at > flight->at) {
      flight->at = at;
      flight->order = ++order_;
      flights_.push(flight);
      return;
    }
  }
  if (host.paused_until > now_) {
    if (host.waiting_bytes + flight->bytes.size() > options_.receive_bytes) {
      drop(dropped_queue_, flight->bytes.data(), flight->bytes.size());
      return;
    }
    host.waiting_bytes += flight->bytes.size();
    host.waiting.push_back(flight);
    return;
  }
  ++delivered_;
  record(*flight);
  engines_[flight->to]->receive(now_, flight->at, flight->from, flight->bytes.data(), flight->bytes.size());
  emit(flight->to);
}

// FNV over words: when, who, how long, and the header.
void Network::record(const Flight& flight) {
  const auto mix = [&](uint64_t word) { digest_ = (digest_ ^ word) * 1099511628211ull; };
  mix(static_cast<uint64_t>(now_));
  mix(uint64_t{flight.to} << 48 | uint64_t{flight.from} << 32 | flight.bytes.size());
  for (size_t at = 0; at + 8 <= std::min(flight.bytes.size(), kHeaderBytes); at += 8) mix(load<uint64_t>(flight.bytes.data() + at));
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
  Time woke_at = 0;
  uint32_t spins = 0;
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
    if (next > until || next == kNever) {
      now_ = std::max(now_, until);
      return next == kNever;
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
    spins = now_ == woke_at ? spins + 1 : 0;
    woke_at = now_;
    if (spins > kMaxSpins) throw std::runtime_error("rank " + std::to_string(waker) + " wants to be woken again and again, and time stands still");
  }
}

}  // namespace tailcut
