#include "engine/port.hpp"

#include <algorithm>

namespace tailcut {

namespace {
constexpr double kMemory = 0.995;   // of the best rate, for each bin with traffic: halves in 5 s
constexpr double kLeastGain = 0.92;  // of the best rate: a port does not shrink; what lies beyond it is the paths' concern
constexpr double kMostGain = 1.5;    // finds more, and makes good for late wake-ups
constexpr double kAboveShare = 1.1;  // what a path may send beyond its share while others are held back
constexpr double kStep = 0.04;       // of the gain, in each bin
constexpr double kSqueezed = 0.7;     // of the best rate
constexpr Time kSomeQueue = kMillisecond;
constexpr Time kBurst = 250 * kMicrosecond;
constexpr Time kCatchUp = 250 * kMicrosecond;
}  // namespace

bool Port::count(Time now, uint32_t delivered, bool held_back) {
  held_back_ |= held_back;
  const bool over = now - bin_begun_ >= kBin;
  if (over) {
    bin_rate_ = bin_bytes_ / static_cast<double>(now - bin_begun_);
    if (bin_bytes_ > 0) delivered_ = std::max(bin_rate_, squeezed() ? delivered_ : delivered_ * kMemory);
    bin_begun_ = now;
    bin_bytes_ = 0;
  }
  bin_bytes_ += static_cast<double>(delivered) * packet_bytes_;
  return over;
}

void Port::adjust(Time, Time queue, uint32_t paths) {
  paths_ = std::max<uint32_t>(paths, 1);
  if (queue == kNever || delivered_ <= 0) return;
  const bool less = (limited_ || held_back_) && bin_rate_ < kSqueezed * delivered_ && queue > kSomeQueue;
  squeezed_bins_ = less ? squeezed_bins_ + 1 : 0;
  held_back_ = false;
  if (queue > options_.port_target) {
    gain_ = std::max(gain_ - kStep, kLeastGain);
    known_ = true;
  } else if (limited_ && queue < options_.port_target / 2) {
    gain_ = std::min(gain_ + kStep, kMostGain);
  }
  if (known_) rate_ = gain_ * delivered_;
  limited_ = false;
}

void Port::sent(Time now, uint64_t bytes) {
  if (rate_ <= 0) return;
  if (send_at_ > now - kCatchUp) limited_ = true;
  send_at_ = std::max(send_at_, now - kCatchUp) + static_cast<Time>(static_cast<double>(bytes) / rate_);
}

Time Port::share_spacing(uint64_t bytes, uint32_t paths) const {
  if (rate_ <= 0) return 0;
  return static_cast<Time>(static_cast<double>(bytes) * paths / (rate_ * kAboveShare));
}

uint64_t Port::burst_bytes() const {
  if (rate_ <= 0) return options_.burst_bytes;
  return std::clamp<uint64_t>(static_cast<uint64_t>(rate_ * static_cast<double>(kBurst)), packet_bytes_, options_.burst_bytes);
}

double Port::queue_share() const {
  return delivered_ * static_cast<double>(options_.delay_target) / packet_bytes_ / paths_;
}

}  // namespace tailcut
