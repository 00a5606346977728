// How much may be on its way to one peer, and how fast it may leave. One controller per path, fed by the peer's reports.
//
// Two modes, after the idea of Copa (NSDI'18):
//  - delay: no stranger on the path. Keep a given number of packets in the queues, after FAST TCP (Wei et al. 2006): paths that meet
//    anywhere, at our port or at a receiver's, converge to equal shares within a few round trips and leave no port idle. Losses are
//    taken for noise of the network unless they are massive.
//  - contend: the queue stays full although we made room, so somebody fills it. Behave like TCP then: additive increase,
//    multiplicative decrease on loss, with CUBIC's factor, and ignore the delay until the queue drains.
// A peer on the same host has no link to spare: only its socket buffer limits.
#pragma once

#include "engine/types.hpp"

namespace tailcut {

// How long packets wait on their way to the peer, from two clocks that nobody set to one time: what counts is how much longer one
// took than the fastest. The clocks may run at slightly different speed, so what was the fastest counts a little less every second.
class ForwardDelay {
 public:
  // Ticks of the peer's clock at the arrival minus ticks of ours at the departure: the time above that of the fastest packet.
  Time above(Time now, uint16_t ticks);

 private:
  static constexpr Time kDrift = 160 * kMillisecond;  // a tick in so long: 50 parts in a million
  bool known_ = false;
  uint16_t fastest_ = 0;
  Time drifted_at_ = 0;
};

struct PathFeedback {
  Time now = 0;
  uint16_t forward = 0;   // for ForwardDelay; meant where network_rtt is
  Time network_rtt = -1;  // without the time the packet waited at the receiver's host; -1: no sample
  Time loop_rtt = -1;     // with it
  uint32_t delivered = 0; // packets newly reported received
  uint32_t lost = 0;      // packets newly found missing
  uint32_t largest = 0;   // highest path sequence reported
  uint32_t next = 0;      // the next one to be sent
  bool limited = false;   // the window, not the data, held us back
  uint64_t peer_window = 0;
  bool squeezed = false;  // the host gets less through than its port can carry, though it has more to send
  Time turn = 0;          // what one packet on each of the host's paths takes
  double queue_share = 0; // packets this path may keep in the queues: its part of what the host may
};

class RateControl {
 public:
  RateControl(const Options& options, uint32_t packet_bytes, bool local);

  void on_report(const PathFeedback& feedback);
  void on_silence();  // nothing reported for rto(): what was on its way is given up

  uint32_t window_packets() const;
  Time spacing(uint64_t bytes) const;  // pause after sending that much, for pacing
  uint64_t burst_bytes() const;        // the most that may leave back to back
  Time rto() const;
  Time tail_timeout() const;  // after the last packet has left: it, or the report that it asked for, must have got lost
  Time tail_probe() const;    // after the last packet has left: by now those that are a little late have arrived
  Time srtt() const { return srtt_; }
  Time loop() const { return loop_; }
  Time min_rtt() const { return min_rtt_ == kNever ? 0 : min_rtt_; }
  Time queue_delay() const { return queue_; }
  Time jitter() const { return min_rtt() / 8; }  // over a long way packets are a little late for reasons that are nobody's queue
  bool contending() const { return contend_; }
  double bytes_per_second() const;

 private:
  void sample(const PathFeedback& feedback);
  void end_round(const PathFeedback& feedback);
  void round_alone(const PathFeedback& feedback);
  void round_contending(const PathFeedback& feedback);

  const Options options_;
  const uint32_t packet_bytes_;
  const bool local_;

  double window_;  // packets
  uint64_t peer_window_;
  bool slow_start_ = true;
  bool contend_ = false;
  Time srtt_ = 0, loop_ = 0, loop_variance_ = 0, min_rtt_ = kNever, queue_ = 0;
  ForwardDelay forward_;
  uint32_t silences_ = 0;

  // The current round: from one report to the report of what was sent after it.
  uint32_t round_end_ = 0, round_delivered_ = 0, round_lost_ = 0;
  Time round_queue_ = 0, round_loop_ = 0;  // sums of samples
  int64_t round_samples_ = 0;
  bool round_limited_ = false;
  Time full_since_ = kNever;     // the queue has been far above the target since
  uint32_t drained_rounds_ = 0;  // rounds in a row with a short queue
};

}  // namespace tailcut
