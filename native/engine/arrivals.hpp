// How fast data comes in from other hosts. Two things follow from it: how long what arrives may wait in the socket, so that packets of
// a long transfer are taken several at a time (a wake-up for each costs more than the packet); and how much peers may have on its way
// to us, so that a slow port of ours holds no long queue, in which also the reports wait that our own sending depends on.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/types.hpp"

namespace tailcut {

class Arrivals {
 public:
  void add(Time arrived, uint64_t bytes, bool local) {
    if (local) {
      local_at_ = arrived;  // between processes of one host windows are small, and a rest would starve the sender
      return;
    }
    if (arrived - newest_ > kPause) {  // a new stretch
      lift();  // what pauses holds no queue; perhaps it pauses because we allow too little
      rate_ = 0;
      begun_ = arrived;
      bytes_ = 0;
    } else {
      bytes_ += bytes;
    }
    newest_ = std::max(newest_, arrived);
    const Time bin = newest_ - begun_;
    if (bin < kBin || (bytes_ < kBinBytes && bin < kLongestBin)) return;
    rate_ = static_cast<double>(bytes_) / static_cast<double>(bin);
    if (rate_ < kSqueezed * best_) {
      lift();
    } else if (best_ > 0 || bytes_ >= kLeastBytes) {  // a few packets tell nothing of what the port can carry
      best_ = std::max(rate_, best_ * kMemory);
      lift_ = 1;
    }
    begun_ = newest_;
    bytes_ = 0;
  }

  // left: bytes still to come. room: bytes that the socket holds.
  Time rest(Time now, uint64_t left, uint64_t room) const {
    if (rate_ <= 0 || now - newest_ > kBin || now - local_at_ < kBin) return 0;
    const double bytes = static_cast<double>(std::min(left / kPartOfRest, room / kPartOfRoom));
    return std::min(kLongestRest, static_cast<Time>(bytes / rate_));
  }

  // Bytes that each of so many peers may have on its way to us: what our port carries in a round trip and a little more. The little is
  // shared with `more` that may begin any moment; the round trip counts for more than one, for the rate may be that of senders which
  // just this kept short. No limit while the rate is unknown; a rising one while less comes, for if others use the port too, a fixed one
  // would leave it to them.
  uint64_t enough(Time round_trip, uint64_t senders, uint64_t more) const {
    if (best_ <= 0) return std::numeric_limits<uint64_t>::max();
    senders = std::max<uint64_t>(senders, 1);
    const double time = static_cast<double>(kQueue) / static_cast<double>(senders + more) +
                        kRoundTrips * static_cast<double>(round_trip) / static_cast<double>(senders);
    return static_cast<uint64_t>(lift_ * best_ * time);
  }

 private:
  void lift() { lift_ = std::min(lift_ * kLift, kLiftMost); }

  static constexpr Time kPause = 20 * kMillisecond;
  static constexpr Time kBin = 5 * kMillisecond;
  static constexpr Time kLongestBin = 40 * kMillisecond;
  static constexpr uint64_t kBinBytes = 48 * 1024;      // enough to know a rate
  static constexpr uint64_t kLeastBytes = 24 * 1024;    // enough to have a first idea of it
  static constexpr double kMemory = 0.998;              // of the best rate, for each bin
  static constexpr double kSqueezed = 0.7;              // of the best rate
  static constexpr double kLift = 1.25;                 // for each bin with less, and each pause
  static constexpr double kLiftMost = 1'000;
  static constexpr double kRoundTrips = 1.5;
  static constexpr Time kQueue = 16 * kMillisecond;     // a queue that small switches hold
  static constexpr Time kLongestRest = 400 * kMicrosecond;  // a report may wait several times as long anyway
  static constexpr uint64_t kPartOfRest = 16;           // the end of a transfer is not to come later for it
  static constexpr uint64_t kPartOfRoom = 8;            // nor is the socket to overflow when the process sleeps too long

  double rate_ = 0, best_ = 0;  // bytes per nanosecond; 0: not known
  double lift_ = 1;
  Time begun_ = 0, newest_ = 0;
  Time local_at_ = -kBin;
  uint64_t bytes_ = 0;
};

}  // namespace tailcut
