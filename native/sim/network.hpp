// A small network in virtual time: n real engines, one seed, and every kind of bad luck. Same seed, same run, to the last packet.
// Each rank has a port with a rate and a queue in both directions; between ports there is latency, jitter (and so reordering),
// loss alone and in bursts, duplication and bit flips. Ranks can be paused and killed, directions of paths cut or made lossy,
// datagrams captured and injected.
#pragma once

#include <memory>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.hpp"

namespace tailcut {

struct NetworkConfig {
  uint64_t seed = 0;
  Time latency = 50 * kMicrosecond;
  Time jitter = 0;            // uniform, added to the latency: reorders
  double loss = 0, duplicate = 0, corrupt = 0;  // probability of each datagram; corrupt: one bit of it flips
  double flip_payload = 0;    // probability that one bit of the payload of a data packet flips: no engine can know
  // Bursts of loss, after Gilbert: each direction of a path is good for burst_gap and then loses everything for burst_length, both
  // exponentially distributed around these means. In time, not in datagrams: a path that carries little is not down for longer.
  Time burst_gap = 0, burst_length = 0;
  double rate = 0;            // bytes per second of a port, each direction; 0: infinite
  uint64_t queue_bytes = 256 * 1024;  // of a port, each direction
  uint64_t overhead_bytes = 42;       // Ethernet, IP and UDP headers of a datagram
};

class Network {
 public:
  Network(uint32_t size, uint32_t payload, const Options& options, const NetworkConfig& config);

  uint64_t start(Rank rank, std::shared_ptr<const Part> part, OpKey key, const Fingerprint& print, const void* input, void* output, Time timeout);
  void cancel(Rank rank, uint64_t ticket) { engines_[rank]->cancel(now_, ticket); }
  void leave(Rank rank);
  bool run(Time until);  // lets time pass; false: something is still going on at `until`; true: nothing will ever happen again
  std::vector<Result> results(Rank rank);

  void kill(Rank rank) { hosts_[rank].dead = true; }
  void pause(Rank rank, Time duration) { hosts_[rank].paused_until = now_ + duration; }
  void cut(Rank from, Rank to, bool open) { path(from, to).cut = !open; }
  void inject(Rank to, Rank from, std::vector<uint8_t> datagram);  // is there at once: no port, no latency, no loss
  void set_loss(double loss) { config_.loss = loss; }
  void set_path_loss(Rank from, Rank to, double loss) { path(from, to).loss = loss; }  // instead of `loss`; negative: as everywhere
  void capture(bool on) { capturing_ = on; }  // from now on keep a copy of everything that ranks send

  struct Captured {
    Time at = 0;
    Rank from = 0, to = 0;
    std::vector<uint8_t> bytes;
  };
  std::vector<Captured> take_captured() { return std::exchange(captured_, {}); }

  Time now() const { return now_; }
  uint32_t size() const { return static_cast<uint32_t>(engines_.size()); }
  Engine& engine(Rank rank) { return *engines_[rank]; }
  uint64_t digest() const { return digest_; }        // of everything that was delivered, in order
  uint64_t delivered() const { return delivered_; }  // datagrams
  uint64_t dropped_queue() const { return dropped_queue_; }
  uint64_t dropped_loss() const { return dropped_loss_; }
  uint64_t dropped_data() const { return dropped_data_; }  // data packets among both
  uint64_t duplicated() const { return duplicated_; }
  uint64_t flipped() const { return flipped_; }

 private:
  struct Flight {
    Time at = 0;
    uint64_t order = 0;
    Rank to = 0, from = 0;
    bool queued = false;  // has passed the receiver's port
    std::vector<uint8_t> bytes;
  };
  struct Later {
    bool operator()(const std::shared_ptr<Flight>& a, const std::shared_ptr<Flight>& b) const {
      return a->at != b->at ? a->at > b->at : a->order > b->order;
    }
  };
  struct Host {
    bool dead = false;
    Time paused_until = 0;
    Time out_free = 0, in_free = 0;  // when the port is idle again
    std::vector<std::shared_ptr<Flight>> waiting;  // in the socket buffer of a paused host
    uint64_t waiting_bytes = 0;
  };
  struct Path {
    double loss = -1;  // negative: the configured one
    bool cut = false;
    bool bad = true;   // in a burst of loss ...
    Time turn_at = 0;  // ... until then; the first turn is a good one
  };
  Path& path(Rank from, Rank to) { return paths_[from * size() + to]; }
  void emit(Rank rank);
  bool lose(Path& path, Time at);
  bool in_burst(Path& path, Time at);
  void flip(std::vector<uint8_t>& datagram);
  void drop(uint64_t& reason, const uint8_t* bytes, size_t length);
  void record(const Flight& flight);
  void send(Rank from, Rank to, const uint8_t* bytes, size_t length);
  void launch(Rank from, Rank to, std::vector<uint8_t> bytes, Time at, bool past_port);
  void arrive(const std::shared_ptr<Flight>& flight);
  bool pass_port(Time& free, const uint8_t* bytes, size_t length, Time& at);
  void resume(Rank rank);
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  NetworkConfig config_;
  const Options options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Host> hosts_;
  std::vector<Path> paths_;
  bool capturing_ = false;
  std::vector<Captured> captured_;
  std::priority_queue<std::shared_ptr<Flight>, std::vector<std::shared_ptr<Flight>>, Later> flights_;
  std::unique_ptr<Transmit> transmit_;
  Time now_ = kSecond;  // not zero, so that "never" and "at the start" differ
  uint64_t order_ = 0;
  uint64_t digest_ = 1469598103934665603ull;
  uint64_t delivered_ = 0, dropped_queue_ = 0, dropped_loss_ = 0, dropped_data_ = 0, duplicated_ = 0, flipped_ = 0;
};

}  // namespace tailcut
