#include "udp/endpoint.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace tailcut {

namespace {

constexpr uint64_t kDefaultBuffer = 4 << 20;          // bytes; the kernel gives less where net.core.rmem_max says so
constexpr Time kSlice = 200 * kMillisecond;           // between looks at Python's signals
constexpr int kRounds = 64;                           // of receive and transmit before the lock is given to others

// Timers are late by 50 us by default, which is more than a packet takes on most links.
void precise_timers() {
  static thread_local bool done = false;
  if (!done) prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  done = true;
}

timespec to_timespec(Time ns) { return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)}; }

void require(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Endpoint::Endpoint(const std::string& host, uint16_t port, uint64_t buffer_bytes, bool offload)
    : socket_(Address::parse(host, port), buffer_bytes ? buffer_bytes : kDefaultBuffer, offload),
      batch_(new Transmit[UdpSocket::kSendBatch]) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  require(std::min({epoll_, timer_, wake_}), "cannot create the driver's descriptors");
  for (const int fd : {socket_.fd(), timer_, wake_}) {
    epoll_event event{};
    event.events = fd == wake_ ? 0u : static_cast<uint32_t>(EPOLLIN);
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  thread_ = std::thread([this] { run(); });
}

Endpoint::~Endpoint() { close(); }

void Endpoint::close() {
  {
    Lock lock(mutex_);
    stop_ = true;
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, wake_, &event);
    kick();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (int* fd : {&epoll_, &timer_, &wake_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

void Endpoint::kick() {
  const uint64_t one = 1;
  if (wake_ >= 0) [[maybe_unused]] const ssize_t ignored = write(wake_, &one, sizeof one);
}

// Who watches the socket: the background thread, or nobody but the caller that drives.
void Endpoint::arm(bool background) {
  epoll_event event{};
  event.data.fd = socket_.fd();
  const Time rested = background ? rest_until(monotonic_now()) : 0;
  if (background && rested == 0) event.events |= EPOLLIN;
  if (background && !pending_.empty()) event.events |= EPOLLOUT;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.fd(), &event);
  itimerspec when{};
  const Time next = !background ? kNever : rested > 0 ? std::min(rested, next_wake()) : next_wake();
  if (next != kNever) when.it_value = to_timespec(std::max<Time>(next, 1));
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
}

void Endpoint::run() {
  precise_timers();
  epoll_event events[4];
  while (true) {
    epoll_wait(epoll_, events, 4, -1);
    uint64_t expirations = 0;
    [[maybe_unused]] const ssize_t ignored = read(timer_, &expirations, sizeof expirations);
    Lock lock(mutex_);
    if (stop_) return;
    if (driving_) continue;
    for (int round = 0; round < kRounds && service(monotonic_now()); ++round) {
    }
    arm(true);
  }
}

bool Endpoint::service(Time now) {
  uint64_t drops = 0;
  const std::vector<Received>& messages = socket_.receive(drops);
  for (const Received& message : messages) dispatch(message, now);
  for (const auto& [group, channel] : channels_) {
    if (!channel->engine_) continue;
    if (drops > 0) channel->engine_->count_kernel_drops(drops);
    drops = 0;
    channel->engine_->wake(now);
  }
  const bool more = messages.size() == UdpSocket::kReceiveBatch;  // a short batch has emptied the socket
  transmit(now);
  deliver();
  return more;
}

void Endpoint::dispatch(const Received& message, Time now) {
  const size_t step = std::max<size_t>(message.segment, 1);
  const uint64_t datagrams = std::max<uint64_t>((message.bytes + step - 1) / step, 1);  // that the kernel merged into this message
  Header header;
  const bool ours = decode(message.data, message.bytes, header);
  const auto at = ours ? channels_.find(header.group) : channels_.end();
  if (at == channels_.end()) {
    unclaimed_ += datagrams;
    return;
  }
  Channel& channel = *at->second;
  if (header.source >= channel.peers_.size() || header.source == channel.rank_ || !(channel.peers_[header.source] == *message.from)) {
    channel.foreign_ += datagrams;
    return;
  }
  if (header.kind == Kind::kProbe || header.kind == Kind::kProbeAck) {
    on_probe(header, message);
    return;
  }
  if (!channel.engine_) return;  // a faster peer has begun already; it will repeat itself
  if (message.truncated) {
    ++channel.engine_->counters().dropped_truncated;
    return;
  }
  for (size_t offset = 0; offset < message.bytes; offset += step) {
    channel.engine_->receive(now, message.arrived, header.source, message.data + offset, std::min(step, message.bytes - offset));
  }
}

// A probe is answered with its length; nothing else of it is used.
void Endpoint::on_probe(const Header& header, const Received& message) {
  Channel& channel = *channels_.at(header.group);
  if (header.kind == Kind::kProbeAck) {
    if (message.bytes < kHeaderBytes + 4) return;
    uint32_t& best = channel.probed_[header.source];
    best = std::max(best, std::min<uint32_t>(load<uint32_t>(message.data + kHeaderBytes), 65507));
    changed_.notify_all();
    return;
  }
  uint8_t answer[kHeaderBytes + 4];
  Header reply = header;
  reply.kind = Kind::kProbeAck;
  reply.source = channel.rank_;
  encode(reply, answer);
  store<uint32_t>(answer + kHeaderBytes, static_cast<uint32_t>(message.segment));
  socket_.send_probe(answer, sizeof answer, channel.peers_[header.source]);
}

void Endpoint::transmit(Time now) {
  if (!flush_pending()) return;
  for (const auto& [group, channel] : channels_) {
    if (!channel->engine_) continue;
    while (true) {
      size_t count = 0;
      while (count < UdpSocket::kSendBatch && channel->engine_->poll_transmit(now, batch_[count])) ++count;
      if (count == 0) break;
      const size_t sent = socket_.send(batch_.get(), count, channel->peers_, channel->engine_->counters().send_errors);
      if (sent < count) {
        keep_pending(*channel, sent, count);
        return;
      }
      if (count < UdpSocket::kSendBatch) break;
      now = monotonic_now();
    }
  }
}

void Endpoint::keep_pending(const Channel& channel, size_t from, size_t count) {
  for (size_t i = from; i < count; ++i) {
    const Transmit& batch = batch_[i];
    Pending kept{channel.peers_[batch.to], batch.segment_bytes, {}};
    kept.bytes.reserve(batch.bytes);
    for (uint32_t k = 0; k < batch.pieces; ++k) kept.bytes.insert(kept.bytes.end(), batch.piece[k].data, batch.piece[k].data + batch.piece[k].bytes);
    pending_.push_back(std::move(kept));
  }
}

bool Endpoint::flush_pending() {
  size_t done = 0;
  for (; done < pending_.size(); ++done) {
    const Pending& kept = pending_[done];
    size_t offset = 0;
    for (; offset < kept.bytes.size(); offset += kept.segment_bytes) {
      const size_t bytes = std::min<size_t>(kept.segment_bytes, kept.bytes.size() - offset);
      const ssize_t sent = sendto(socket_.fd(), kept.bytes.data() + offset, bytes, MSG_DONTWAIT,
                                  reinterpret_cast<const sockaddr*>(&kept.to.storage), kept.to.length);
      if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS) && offset == 0) {
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
        return false;
      }
    }
  }
  pending_.clear();
  return true;
}

void Endpoint::deliver() {
  bool any = false;
  for (const auto& [group, channel] : channels_) {
    if (!channel->engine_) continue;
    while (auto result = channel->engine_->poll_event()) {
      const auto at = channel->completions_.find(result->ticket);
      if (at == channel->completions_.end()) continue;
      at->second->result = std::move(*result);
      at->second->done = true;
      channel->completions_.erase(at);
      any = true;
    }
  }
  if (any && waiters_ > 0) changed_.notify_all();
}

Time Endpoint::next_wake() const {
  Time next = kNever;
  for (const auto& [group, channel] : channels_) {
    if (channel->engine_) next = std::min(next, channel->engine_->wake_at());
  }
  return next;
}

// Until when what arrives may wait in the socket; 0: not at all.
Time Endpoint::rest_until(Time now) const {
  Time shortest = kNever;
  for (const auto& [group, channel] : channels_) {
    if (channel->engine_ && !channel->engine_->idle()) shortest = std::min(shortest, channel->engine_->rest(now));
  }
  return shortest > 0 && shortest < kNever ? now + shortest : 0;
}

void Endpoint::sleep_as_driver(Lock& lock, Time until) {
  const Time now = monotonic_now();
  const Time rested = rest_until(now);
  if (rested > 0) until = std::min(until, rested);
  sleeping_until_ = until;
  pollfd fds[2] = {{socket_.fd(), static_cast<short>((rested > 0 ? 0 : POLLIN) | (pending_.empty() ? 0 : POLLOUT)), 0}, {wake_, POLLIN, 0}};
  lock.unlock();
  const timespec timeout = to_timespec(std::max<Time>(until - now, 0));
  if (until - now < kMillisecond) precise_timers();
  ppoll(fds, 2, until == kNever ? nullptr : &timeout, nullptr);
  lock.lock();
  sleeping_until_ = kNever;
  if (fds[1].revents) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = read(wake_, &count, sizeof count);
  }
}

// Waits for `done`, driving the socket unless another thread does. The lock is held on entry and on return.
bool Endpoint::drive_until(Lock& lock, Time deadline, const std::function<bool()>& done, const std::function<void()>& interrupted) {
  Time next_look = monotonic_now() + kSlice;
  while (!done() && !stop_) {
    Time now = monotonic_now();
    if (now >= deadline) return done();
    if (now >= next_look) {
      lock.unlock();
      try {
        interrupted();
      } catch (...) {
        lock.lock();
        throw;
      }
      lock.lock();
      next_look = now + kSlice;
      continue;
    }
    const Time limit = std::min(deadline, next_look);
    if (driving_) {
      ++waiters_;
      changed_.wait_for(lock, std::chrono::nanoseconds(limit - now));
      --waiters_;
      continue;
    }
    driving_ = true;
    arm(false);
    while (!done() && !stop_ && now < limit) {
      if (!service(now) && !done()) sleep_as_driver(lock, std::min(limit, next_wake()));
      now = monotonic_now();
    }
    driving_ = false;
    arm(true);
    if (waiters_ > 0) changed_.notify_all();
  }
  return done();
}

}  // namespace tailcut
