#include "engine/port.hpp"

#include <algorithm>

#include "engine/wire.hpp"

namespace tailcut {

namespace {
constexpr double kMemory = 0.998;    // of the best rate, for each bin with traffic: halves in 14 s of it
constexpr double kLeast = 0.9;       // of the best rate: a port does not shrink; what lies beyond it is the paths' concern
constexpr double kMost = 1.5;        // of the best rate: where much gets lost on the way, more must leave than arrives
constexpr double kDrain = 0.98;      // of the best rate, while the queue is too long
constexpr double kSettled = 1.1;     // a bin brought at most so much more than the one before: the first rate is not taken while it grows
constexpr double kMostlySteady = 0.7; // of what passed in a bin, on paths that were busy all the time: the bin tells the port's rate
constexpr double kProbe = 0.01;      // of the rate more, in the first bin without a queue; in the next twice that, ...
constexpr uint32_t kMostProbes = 3;  // ... up to so many times
constexpr double kAboveShare = 1.1;  // what a path may send beyond its share while others are held back
constexpr double kSqueezed = 0.7;    // of the best rate
constexpr double kQueuePackets = 128;
constexpr Time kShortestQueue = 100 * kMicrosecond;
constexpr Time kSomeQueue = kMillisecond;
constexpr Time kBurst = 250 * kMicrosecond;
constexpr Time kCatchUp = 2 * kMillisecond;     // a late wake-up may make good this much: a busy host wakes us late
constexpr Time kReports = 5;  // a busy path reports at least so many times within a bin
constexpr uint32_t kBinPackets = 768;           // enough to know a rate within a per cent
constexpr Time kShortestBin = 5 * kMillisecond; // likewise, for the grain of time stamps
constexpr Time kAmbiguous = 400 * kMillisecond; // between two reports the peer's 16-bit clock may have gone round
}  // namespace

void PathMeter::add(Time now, uint32_t passed, uint16_t arrived_ticks, bool drained) {
  const Time pause = Time{static_cast<uint16_t>(arrived_ticks - newest_)} * kStampUnit;
  if (busy_ && now - heard_at_ < kAmbiguous) {
    passed_ += passed;
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
  const Time span = flow.steady ? elapsed_ : std::max(bin, elapsed_);
  flow.rate = span > 0 ? static_cast<double>(passed_) / static_cast<double>(span) : 0;
  passed_ = 0;
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
  const bool less = (limited_ || held_back_) && bin.passed < kSqueezed * best_ && bin.queue > kSomeQueue;
  squeezed_bins_ = less ? squeezed_bins_ + 1 : 0;
  const Time target = queue_target();
  const bool probing = limited_ && bin.queue < target / 2;
  probes_ = probing ? std::min(probes_ + 1, kMostProbes) : 0;
  const bool full = bin.queue > target;
  const bool steady = bin.steady > kMostlySteady * bin.passed;
  if (probing) {
    rate_ *= 1 + kProbe * probes_;
  } else if (full && rate_ > 0) {
    rate_ = std::min(rate_, kDrain * best_);
  } else if (full && steady && bin.passed < kSettled * last_passed_) {
    rate_ = kDrain * best_;
  }
  last_passed_ = steady ? bin.passed : 0;
  if (rate_ > 0) rate_ = std::clamp(rate_, kLeast * best_, kMost * best_);
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
  return std::clamp<uint64_t>(static_cast<uint64_t>(rate_ * static_cast<double>(kBurst)), packet_bytes_, options_.burst_bytes);
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
