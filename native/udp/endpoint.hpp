// The driver: one UDP socket, one thread, any number of groups. It only moves bytes and time between kernel and engines.
//
// One mutex guards everything. Who waits for an operation drives the socket itself (no thread hop); the background thread is
// disarmed meanwhile and serves the group whenever nobody waits: it answers pings and repairs while Python is busy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.hpp"
#include "udp/socket.hpp"

namespace tailcut {

struct Completion {
  std::atomic<bool> done = false;  // once it is set, `result` does not change any more
  Result result;
};

class Endpoint;

// One group on an endpoint. Guarded by the endpoint's mutex.
class Channel {
 public:
  Channel(std::shared_ptr<Endpoint> endpoint, uint32_t group, Rank rank, std::vector<Address> peers, const Options& options);
  ~Channel();

  std::vector<uint32_t> probe(const std::vector<uint32_t>& sizes, Time timeout, const std::function<void()>& interrupted);
  void set_payload(uint32_t datagram_bytes);
  std::shared_ptr<Completion> start(const std::shared_ptr<const Part>& part, OpKey key, const Fingerprint& print, const void* input,
                                    void* output, Time timeout, uint64_t& ticket);
  // True when done; false when the time is up. `interrupted` runs now and then without the lock, and may throw.
  bool wait(Completion& completion, Time timeout, const std::function<void()>& interrupted);
  void cancel(uint64_t ticket);
  // Stays until peers have what they may ask for, at most `linger`; true if so.
  bool close(Time linger, const std::function<void()>& interrupted);

  template <typename F>
  auto inspect(F&& look);  // runs look(engine or nullptr, foreign datagrams) under the lock; it must not touch Python

 private:
  friend class Endpoint;
  void deliver();

  std::shared_ptr<Endpoint> endpoint_;
  const uint32_t group_;
  const Rank rank_;
  const std::vector<Address> peers_;
  const Options options_;
  std::unique_ptr<Engine> engine_;
  std::unordered_map<uint64_t, std::shared_ptr<Completion>> completions_;
  std::vector<uint32_t> probed_;  // by rank: the longest datagram it confirmed
  uint64_t foreign_ = 0;
  bool closed_ = false;
};

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  Endpoint(const std::string& host, uint16_t port, uint64_t buffer_bytes, bool offload);
  ~Endpoint();
  void close();

  const Address& address() const { return socket_.local(); }
  const Features& features() const { return socket_.features(); }
  uint64_t unclaimed() const { return unclaimed_; }

 private:
  friend class Channel;
  using Lock = std::unique_lock<std::mutex>;

  void run();                                   // the background thread
  bool service(Time now);                       // one round of receive, timers, transmit, events; true if more may be waiting
  void dispatch(const Received& message, Time now);
  void on_probe(const Header& header, const Received& message);
  void transmit(Time now);
  bool flush_pending();
  void keep_pending(const Channel& channel, size_t from, size_t count);
  void deliver();
  Time next_wake() const;
  Time rest_until(Time now) const;

  // Driving by callers.
  bool drive_until(Lock& lock, Time deadline, const std::function<bool()>& done, const std::function<void()>& interrupted);
  void sleep_as_driver(Lock& lock, Time until);
  void arm(bool background);
  void kick();  // an earlier timer was set by another thread

  UdpSocket socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, Channel*> channels_;
  int epoll_ = -1, timer_ = -1, wake_ = -1;
  bool driving_ = false, stop_ = false;
  int waiters_ = 0;
  Time sleeping_until_ = kNever;
  uint64_t unclaimed_ = 0;  // datagrams of no group of ours

  struct Pending {  // batches the socket had no room for; copied, so the fence on user memory holds
    Address to;
    uint32_t segment_bytes;
    std::vector<uint8_t> bytes;
  };
  std::vector<Pending> pending_;
  std::unique_ptr<Transmit[]> batch_;
  std::thread thread_;
};

template <typename F>
auto Channel::inspect(F&& look) {
  std::unique_lock<std::mutex> lock(endpoint_->mutex_);
  return look(engine_.get(), foreign_);
}

}  // namespace tailcut
