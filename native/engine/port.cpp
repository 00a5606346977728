#include "engine/port.hpp"

#include <algorithm>

#include "engine/wire.hpp"

namespace tailcut {

namespace {
constexpr double kMemory = 0.998;    // of the best rate, for each bin with traffic: halves in 14 s of it
constexpr double kDrain = 0.97;      // of the best rate, while the queue is too long
constexpr double kProbe = 1.06;      // while it is short: fills it if the best rate is the port's, finds out if it is not
constexpr double kSettled = 1.1;     // a bin brought at most so much more than the one before: the first rate is not taken while it grows
constexpr double kMostlySteady = 0.7; // of what passed in a bin, on paths that were busy all the time: the bin tells the port's rate
constexpr double kAboveShare = 1.1;  // what a path may send beyond its share while others are held back
constexpr double kSqueezed = 0.7;    // of the best rate
constexpr double kQueuePackets = 128;
constexpr Time kShortestQueue = 100 * kMicrosecond;
constexpr Time kSomeQueue = kMillisecond;
constexpr Time kBurst = 250 * kMicrosecond;
constexpr Time kCatchUp = 2 * kMillisecond;     // a late wake-up may make good this much: a busy host wakes us late
constexpr Time kReports = 5;  // a busy path reports at least so many times within a bin
constexpr uint32_t kBinPackets = 512;           // enough to know a rate within a per cent
constexpr Time kShortestBin = 5 * kMillisecond; // likewise, for the grain of time stamps
constexpr Time kAmbiguous = 400 * kMillisecond; // between two reports the peer's 16-bit clock may have gone round
}  // namespace

void PathMeter::add(Time now, uint32_t passed, uint16_t arrived_ticks, bool drained) {
  const Time pause = Time{static_cast<uint16_t>(arrived_ticks - newest_)} * kStampUnit;
  passed_ += passed;
  if (busy_ && now - heard_at_ < kAmbiguous) {
    busy_passed_ += passed;
    elapsed_ += pause;
  }
  busy_ = !drained;
  newest_ = arrived_ticks;
  heard_at_ = now;
}

PathMeter::Flow PathMeter::take(Time bin) {
  Flow flow;
  flow.steady = bin - elapsed_ <= bin / kReports;
  // Of a path that was not busy all the time, what passed counts for the whole bin.
  const uint32_t packets = flow.steady ? busy_passed_ : passed_;
  flow.rate = static_cast<double>(packets) / static_cast<double>(std::max<Time>(flow.steady ? elapsed_ : bin, 1));
  passed_ = busy_passed_ = 0;
  elapsed_ = 0;
  return flow;
}

bool Port::bin_over(Time now, uint32_t passed) {
  bin_packets_ += passed;
  return now - bin_begun_ >= kBin || (bin_packets_ >= kBinPackets && now - bin_begun_ >= kShortestBin);
}

void Port::adjust(Time now, const Bin& bin) {
  bin_begun_ = now;
  bin_packets_ = 0;
  paths_ = std::max<uint32_t>(bin.paths, 1);
  if (bin.passed > 0) best_ = std::max(bin.passed, squeezed() ? best_ : best_ * kMemory);
  if (bin.queue == kNever || best_ <= 0) return;
  const bool less = (limited_ || held_back_) && bin.passed < kSqueezed * best_ && bin.queue > kSomeQueue + bin.jitter;
  squeezed_bins_ = less ? squeezed_bins_ + 1 : 0;
  const bool steady = bin.steady > kMostlySteady * bin.passed;
  const Time target = queue_target();
  if (rate_ > 0 || (bin.queue > target && steady && bin.passed < kSettled * last_passed_)) {
    rate_ = best_ * (bin.queue > target ? kDrain : bin.queue < target / 2 ? kProbe : 1);
  }
  last_passed_ = steady ? bin.passed : 0;
  limited_ = held_back_ = false;
}

void Port::sent(Time now, uint64_t bytes) {
  if (rate_ <= 0) return;
  const Time least = now - (waiting_ ? kCatchUp : kBurst);
  limited_ |= waiting_;
  waiting_ = false;
  send_at_ = std::max(send_at_, least) + static_cast<Time>(static_cast<double>(bytes) / rate_);
}

Time Port::share_spacing(uint64_t bytes, uint32_t paths) const {
  if (rate_ <= 0) return 0;
  return static_cast<Time>(static_cast<double>(bytes) * paths / (rate_ * kAboveShare));
}

uint64_t Port::burst_bytes() const {
  if (rate_ <= 0) return options_.burst_bytes;
  return std::clamp<uint64_t>(static_cast<uint64_t>(rate_ * static_cast<double>(kBurst)), uint64_t{2} * packet_bytes_, options_.burst_bytes);
}

// Shallow switches hold packets, not time: on fast links the queue we allow is shorter.
Time Port::queue_target() const {
  const double packets = best_ > 0 ? kQueuePackets * packet_bytes_ / best_ : 0;
  return std::clamp(static_cast<Time>(packets), kShortestQueue, options_.port_target);
}

double Port::queue_share() const {
  const double delay = static_cast<double>(options_.delay_target) * static_cast<double>(queue_target()) / static_cast<double>(options_.port_target);
  return best_ * delay / packet_bytes_ / paths_;
}

}  // namespace tailcut
