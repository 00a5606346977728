// The host's own port to the network, shared by all its paths. Paces what leaves, so that our own flows build no queue at it and
// take turns packet by packet: then every receiver gets even shares too, and nobody's port idles. The rate is learnt from the delay.
#pragma once

#include "engine/types.hpp"

namespace tailcut {

class Port {
 public:
  static constexpr Time kBin = 40 * kMillisecond;  // between adjustments; long, or the grain of reports makes the rate seem higher

  Port(const Options& options, uint32_t packet_bytes) : options_(options), packet_bytes_(packet_bytes) {}

  // Packets newly reported received, and whether a window held more back; true when a bin is over and adjust() is due.
  bool count(Time now, uint32_t delivered, bool held_back);
  // `queue`: the shortest queueing delay of any path in use, kNever if there is none; `paths` in use.
  void adjust(Time now, Time queue, uint32_t paths);
  void sent(Time now, uint64_t bytes);

  Time send_at() const { return send_at_; }
  Time share_spacing(uint64_t bytes, uint32_t paths) const;  // pause of one path that may take little more than its even share
  uint64_t burst_bytes() const;
  double queue_share() const;  // packets that one path may keep in the queues
  // For a while less gets through than the port can carry, although more was ready and queues are there: somebody else uses it.
  bool squeezed() const { return squeezed_bins_ >= kSqueezedBins; }
  double bytes_per_second() const { return rate_ * 1e9; }

 private:
  const Options options_;
  const uint32_t packet_bytes_;
  double rate_ = 0;       // bytes per nanosecond; 0: not known yet, no pacing
  double delivered_ = 0;  // bytes per nanosecond that got through lately: the best of recent bins
  double gain_ = 1;       // rate_ as a multiple of it
  bool known_ = false;    // a queue has formed once: the best rate is the port's
  Time send_at_ = 0;
  bool limited_ = false;  // pacing held something back in this bin
  bool held_back_ = false;  // a window did
  double bin_rate_ = 0;   // of the last bin
  uint32_t squeezed_bins_ = 0;
  static constexpr uint32_t kSqueezedBins = 3;
  uint32_t paths_ = 1;
  Time bin_begun_ = 0;
  double bin_bytes_ = 0;
};

}  // namespace tailcut
