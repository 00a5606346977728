#include <algorithm>
#include <stdexcept>

#include "udp/endpoint.hpp"

namespace tailcut {

namespace {
constexpr Time kProbePause = 20 * kMillisecond;    // between repeated probes
constexpr Time kProbeSettle = 250 * kMillisecond;  // without a longer one coming through, the longest so far stands
}  // namespace

Channel::Channel(std::shared_ptr<Endpoint> endpoint, uint32_t group, Rank rank, std::vector<Address> peers, const Options& options)
    : endpoint_(std::move(endpoint)), group_(group), rank_(rank), peers_(std::move(peers)), options_([&] {
        Options effective = options;
        effective.receive_bytes = std::max<uint64_t>(endpoint_->features().receive_buffer, 32 * 1024);
        return effective;
      }()), probed_(peers_.size(), 0) {
  if (rank_ >= peers_.size()) throw std::invalid_argument("rank outside the group");
  for (const Address& peer : peers_) {
    if (peer.storage.ss_family != endpoint_->address().storage.ss_family) {
      throw std::invalid_argument("peers mix IPv4 and IPv6: " + peer.host() + " and " + endpoint_->address().host());
    }
  }
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  if (endpoint_->stop_) throw std::runtime_error("the endpoint is closed");
  if (!endpoint_->channels_.emplace(group_, this).second) throw std::invalid_argument("a group with this id is open on the endpoint");
}

Channel::~Channel() {
  try {
    close(0, [] {});
  } catch (...) {  // a destructor has nobody to tell
  }
}

std::vector<uint32_t> Channel::probe(const std::vector<uint32_t>& sizes, Time timeout, const std::function<void()>& interrupted) {
  std::vector<uint32_t> order = sizes;
  std::sort(order.begin(), order.end(), std::greater<>());
  const uint32_t longest = order.empty() ? 0 : order.front();
  std::vector<uint8_t> datagram(std::max<size_t>(longest, kHeaderBytes), 0);
  Header header;
  header.kind = Kind::kProbe;
  header.source = rank_;
  header.group = group_;
  encode(header, datagram.data());
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  probed_[rank_] = longest;
  const Time begun = monotonic_now();
  Time improved = begun;
  uint32_t local_limit = longest;  // what this interface takes
  while (true) {
    const std::vector<uint32_t> before = probed_;
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
      for (const uint32_t size : order) {
        if (size <= probed_[peer] || size > local_limit || size < kHeaderBytes) continue;
        if (!endpoint_->socket_.send_probe(datagram.data(), size, peers_[peer])) local_limit = size - 1;
      }
    }
    const Time pause_end = std::min(monotonic_now() + kProbePause, begun + timeout);
    const auto complete = [&] {
      return std::all_of(order.begin(), order.end(), [&](uint32_t size) {
        return size > local_limit || std::all_of(probed_.begin(), probed_.end(), [&](uint32_t best) { return best >= size; });
      });
    };
    endpoint_->drive_until(lock, pause_end, complete, interrupted);
    const Time now = monotonic_now();
    if (probed_ != before) improved = now;
    const bool all = std::all_of(probed_.begin(), probed_.end(), [](uint32_t best) { return best > 0; });
    if (complete() || now - begun >= timeout || (all && now - improved > kProbeSettle)) return probed_;
  }
}

void Channel::set_payload(uint32_t datagram_bytes) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  if (engine_) throw std::runtime_error("the payload size of a group cannot change");
  if (datagram_bytes < kHeaderBytes + 512 || datagram_bytes > 65507) throw std::invalid_argument("datagram size outside 536 to 65507 bytes");
  const auto payload = static_cast<uint32_t>((datagram_bytes - kHeaderBytes) / 8 * 8);
  std::vector<bool> local;
  for (const Address& peer : peers_) local.push_back(peer.loopback() || peer.same_host(peers_[rank_]));
  engine_ = std::make_unique<Engine>(group_, rank_, local, payload, options_);
}

std::shared_ptr<Completion> Channel::start(const std::shared_ptr<const Part>& part, OpKey key, const Fingerprint& print, const void* input,
                                           void* output, Time timeout, uint64_t& ticket) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  if (!engine_ || closed_ || endpoint_->stop_) throw std::runtime_error("the group is closed");
  const Time now = monotonic_now();
  auto completion = std::make_shared<Completion>();
  ticket = engine_->start(now, part, key, print, input, output, timeout);
  completions_.emplace(ticket, completion);
  endpoint_->transmit(now);
  endpoint_->deliver();
  if (endpoint_->driving_) {
    if (endpoint_->next_wake() < endpoint_->sleeping_until_) endpoint_->kick();
  } else {
    endpoint_->arm(true);
  }
  return completion;
}

bool Channel::wait(Completion& completion, Time timeout, const std::function<void()>& interrupted) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  const Time now = monotonic_now();
  const Time deadline = timeout < 0 || timeout > kNever - now ? kNever : now + timeout;
  return endpoint_->drive_until(lock, deadline, [&] { return completion.done.load(); }, interrupted);
}

void Channel::cancel(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  if (!engine_) return;
  const Time now = monotonic_now();
  engine_->cancel(now, ticket);
  endpoint_->transmit(now);
  endpoint_->deliver();
}

bool Channel::close(Time linger, const std::function<void()>& interrupted) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  if (closed_) return true;
  bool settled = true;
  if (engine_ && !endpoint_->stop_) {
    if (linger > 0) settled = endpoint_->drive_until(lock, monotonic_now() + linger, [&] { return engine_->idle(); }, interrupted);
    const Time now = monotonic_now();
    engine_->leave(now);
    endpoint_->transmit(now);
    endpoint_->deliver();
  }
  closed_ = true;
  endpoint_->channels_.erase(group_);
  return settled;
}

}  // namespace tailcut
