// The host's own port to the network, shared by all its paths. Paces what leaves at the rate the port carries, so that our own flows
// build no queue there and take turns packet by packet: then every receiver gets even shares too, and nobody's port idles.
#pragma once

#include "engine/types.hpp"

namespace tailcut {

// How fast a peer's packets got there, by the peer's clock: reports come at any moment, what they say of arrivals is exact.
class PathMeter {
 public:
  // A report: packets newly known to have passed, when the newest of them arrived, in ticks of the peer's clock, and whether
  // nothing more is on its way: until something is, time does not count.
  void add(Time now, uint32_t passed, uint16_t arrived_ticks, bool drained);
  struct Flow {
    double rate = 0;     // packets per nanosecond
    bool steady = false; // it was busy all the time
  };
  Flow take(Time bin);  // over a bin of the given length; starts the next one

 private:
  uint32_t passed_ = 0, busy_passed_ = 0;
  Time elapsed_ = 0;       // between the first arrival and the newest, less idle times
  uint16_t newest_ = 0;    // ticks
  Time heard_at_ = 0;      // our clock, when that was reported
  bool busy_ = false;      // more was on its way then
};

class Port {
 public:
  static constexpr Time kBin = 40 * kMillisecond;  // the longest between adjustments

  Port(const Options& options, uint32_t packet_bytes) : options_(options), packet_bytes_(packet_bytes) {}

  void hold_back() { held_back_ = true; }  // a window kept data from leaving
  bool bin_over(Time now, uint32_t passed);  // packets newly known to have passed
  struct Bin {
    double passed = 0;      // bytes per nanosecond that got through, on all paths together
    double steady = 0;      // part of it on paths that were busy all the time
    Time queue = kNever;    // the shortest queueing delay of any path in use
    Time jitter = 0;        // the most by which that may be wrong
    uint32_t paths = 0;     // in use
  };
  void adjust(Time now, const Bin& bin);
  void wait() { waiting_ = true; }  // data was there, but it was not its time
  void sent(Time now, uint64_t bytes);

  Time bin_begun() const { return bin_begun_; }
  Time send_at() const { return send_at_; }
  Time share_spacing(uint64_t bytes, uint32_t paths) const;  // pause of one path that may take little more than its even share
  uint64_t burst_bytes() const;
  Time turn() const { return best_ > 0 ? static_cast<Time>(packet_bytes_ * paths_ / best_) : 0; }  // of one packet on each path
  double queue_share() const;  // packets that one path may keep in the queues
  // For a while less gets through than the port can carry, although more was ready and queues are there: somebody else uses it.
  bool squeezed() const { return squeezed_bins_ >= kSqueezedBins; }
  double bytes_per_second() const { return rate_ * 1e9; }

 private:
  Time queue_target() const;

  const Options options_;
  const uint32_t packet_bytes_;
  double rate_ = 0;  // bytes per nanosecond; 0: not known yet, no pacing
  double best_ = 0;  // the most that got through lately, bytes per nanosecond
  double last_passed_ = 0;  // in the bin before, if that was steady
  Time send_at_ = 0;
  uint32_t bin_packets_ = 0;
  bool waiting_ = false;
  bool limited_ = false;    // pacing held something back in this bin
  bool held_back_ = false;  // a window did
  uint32_t squeezed_bins_ = 0;
  static constexpr uint32_t kSqueezedBins = 3;
  uint32_t paths_ = 1;
  Time bin_begun_ = 0;
};

}  // namespace tailcut
