#include "engine/rate.hpp"

#include <algorithm>

#include "engine/wire.hpp"

namespace tailcut {

namespace {
constexpr double kFirstWindow = 16;   // packets; TCP starts with 10
constexpr double kLeastWindow = 4;    // packets: enough for two paced bursts
constexpr double kLeastShare = 4;     // packets in the queues
constexpr double kMassiveLoss = 0.15; // of a round: no network that is worth using loses that much by accident
constexpr double kBackOff = 0.7;      // CUBIC's beta
constexpr double kAdd = 1.0;          // packets per round; 0.53, CUBIC's in its TCP-friendly region, got us less than our share beside it
constexpr Time kLocalPatience = 20 * kMillisecond;  // on one host nothing gets lost, but a peer may wait long for a core
constexpr Time kTailSlack = 1'500 * kMicrosecond;   // for the receiver's host to wake up and report
constexpr Time kBurst = 250 * kMicrosecond;  // the longest burst, in time of the path's rate
}  // namespace

Time ForwardDelay::above(Time now, uint16_t ticks) {
  if (!known_ || static_cast<int16_t>(ticks - fastest_) < 0) {
    known_ = true;
    fastest_ = ticks;
    drifted_at_ = now;
  }
  for (; now - drifted_at_ >= kDrift && fastest_ != ticks; drifted_at_ += kDrift) ++fastest_;
  if (fastest_ == ticks) drifted_at_ = now;
  return Time{static_cast<uint16_t>(ticks - fastest_)} * kStampUnit;
}

RateControl::RateControl(const Options& options, uint32_t packet_bytes, bool local)
    : options_(options), packet_bytes_(packet_bytes), local_(local), window_(kFirstWindow), peer_window_(options.receive_bytes / 4) {}

void RateControl::sample(const PathFeedback& feedback) {
  if (feedback.peer_window > 0) peer_window_ = feedback.peer_window;
  if (feedback.network_rtt < 0) return;
  const Time rtt = std::max<Time>(feedback.network_rtt, 1);
  if (srtt_ == 0) {
    srtt_ = rtt;
    loop_ = feedback.loop_rtt;
    loop_variance_ = loop_ / 2;
  } else {
    loop_variance_ += (std::abs(feedback.loop_rtt - loop_) - loop_variance_) / 4;
    srtt_ += (rtt - srtt_) / 8;
    loop_ += (feedback.loop_rtt - loop_) / 8;
  }
  min_rtt_ = std::min(min_rtt_, rtt);
  round_queue_ += forward_.above(feedback.now, feedback.forward);
  round_loop_ += feedback.loop_rtt;
  ++round_samples_;
}

void RateControl::on_report(const PathFeedback& feedback) {
  silences_ = 0;
  sample(feedback);
  round_delivered_ += feedback.delivered;
  round_lost_ += feedback.lost;
  round_limited_ |= feedback.limited;
  if (slow_start_ && feedback.limited) window_ += feedback.delivered;
  if (static_cast<int32_t>(feedback.largest - round_end_) >= 0) end_round(feedback);
  // Where the peer's limit holds us back, our own may not run away meanwhile.
  const double most = std::max(2.0 * static_cast<double>(peer_window_) / packet_bytes_, kFirstWindow);
  window_ = std::clamp(window_, kLeastWindow, std::min<double>(options_.max_window_packets, most));
}

void RateControl::end_round(const PathFeedback& feedback) {
  if (round_samples_ > 0) queue_ = std::max<Time>(round_queue_ / round_samples_ - jitter(), 0);
  if (!local_) {
    if (contend_) {
      round_contending(feedback);
    } else {
      round_alone(feedback);
    }
  }
  round_end_ = feedback.next;
  round_delivered_ = round_lost_ = 0;
  round_queue_ = round_loop_ = round_samples_ = 0;
  round_limited_ = false;
}

void RateControl::round_alone(const PathFeedback& feedback) {
  const uint32_t sent = round_delivered_ + round_lost_;
  const double share = std::max(feedback.queue_share, kLeastShare);
  if (sent >= 20 && round_lost_ > kMassiveLoss * sent) {
    slow_start_ = false;
    window_ *= kBackOff;
  } else if (round_samples_ > 0) {
    const double loop = static_cast<double>(round_loop_) / static_cast<double>(round_samples_);
    const double queued = window_ * static_cast<double>(queue_) / std::max(loop, 1.0);
    if (queued > share) slow_start_ = false;
    const double wanted = window_ - queued + share;  // keep what is on the wire, and our share of the queues
    double step = (wanted - window_) / 2;
    // Reports that come back late, through somebody's queue, make rounds long: then our share is too small a step.
    if (round_limited_ && queued < share / 2) step = std::max(step, window_ / 4);
    if (!slow_start_ && (round_limited_ || step < 0)) window_ += step;
  }
  const Time ours = static_cast<Time>(kLeastShare) * feedback.turn;  // even the least we do makes a queue at a slow port
  if (feedback.squeezed) {
    contend_ = true;
    drained_rounds_ = 0;
  } else if (queue_ <= options_.stranger_delay + ours) {
    full_since_ = kNever;
  } else if (full_since_ == kNever) {
    full_since_ = feedback.now;
  } else if (feedback.now - full_since_ > std::max<Time>(100 * kMillisecond, 8 * srtt_)) {
    contend_ = true;
    drained_rounds_ = 0;
  }
}

void RateControl::round_contending(const PathFeedback& feedback) {
  if (round_lost_ > 0) {
    window_ *= kBackOff;
  } else if (round_limited_) {
    window_ += kAdd;
  }
  drained_rounds_ = !feedback.squeezed && queue_ < options_.stranger_delay / 2 ? drained_rounds_ + 1 : 0;
  if (drained_rounds_ >= 3) {
    contend_ = false;
    full_since_ = kNever;
  }
}

void RateControl::on_silence() {
  ++silences_;
  if (srtt_ == 0) return;  // the way may just be longer than we thought
  slow_start_ = false;
  window_ = std::max(window_ * 0.5, kLeastWindow);
}

uint32_t RateControl::window_packets() const {
  const auto peer = std::max<uint64_t>(peer_window_ / packet_bytes_, 2);
  if (local_) return static_cast<uint32_t>(std::min<uint64_t>(peer, options_.max_window_packets));
  return static_cast<uint32_t>(std::min<double>(window_, static_cast<double>(peer)));
}

double RateControl::bytes_per_second() const {
  const double loop = static_cast<double>(std::max<Time>(loop_, 20 * kMicrosecond));
  return (contend_ ? 1.25 : 2.0) * window_ * packet_bytes_ / loop * 1e9;
}

Time RateControl::spacing(uint64_t bytes) const {
  if (local_ || loop_ == 0) return 0;
  return static_cast<Time>(static_cast<double>(bytes) / bytes_per_second() * 1e9);
}

uint64_t RateControl::burst_bytes() const {
  if (local_) return options_.burst_bytes;
  const uint64_t least = 2 * packet_bytes_;
  if (loop_ == 0) return least;
  const auto burst = static_cast<uint64_t>(bytes_per_second() * static_cast<double>(kBurst) / 1e9);
  return std::clamp<uint64_t>(burst, least, options_.burst_bytes);
}

Time RateControl::rto() const {
  const Time base = srtt_ == 0 ? 20 * kMillisecond : loop_ + 4 * loop_variance_ + min_rtt() / 2 + options_.report_delay + (local_ ? kLocalPatience : kMillisecond);
  return std::min<Time>(base << std::min<uint32_t>(silences_, 6), kSecond);
}

Time RateControl::tail_probe() const { return srtt_ / 8; }

Time RateControl::tail_timeout() const {
  if (local_ || srtt_ == 0) return rto();
  return std::min(srtt_ + srtt_ / 2 + kTailSlack, rto());
}

}  // namespace tailcut
