// How fast data comes in from other hosts, and how long it may therefore wait in the socket: packets of a long transfer are taken
// several at a time, as a network card's interrupts are. A wake-up for each packet costs more than the packet.
#pragma once

#include <algorithm>

#include "engine/types.hpp"

namespace tailcut {

class Arrivals {
 public:
  void add(Time now, uint64_t bytes, bool local) {
    if (local) {
      local_at_ = now;  // between processes of one host windows are small and a rest would starve the sender
      return;
    }
    if (now - newest_ > kBin) {  // a new stretch
      rate_ = 0;
      begun_ = now;
      bytes_ = 0;
    } else {
      bytes_ += bytes;
    }
    newest_ = now;
    if (now - begun_ < kBin) return;
    rate_ = static_cast<double>(bytes_) / static_cast<double>(now - begun_);
    begun_ = now;
    bytes_ = 0;
  }

  // left: bytes still to come. room: bytes that the socket holds.
  Time rest(Time now, uint64_t left, uint64_t room) const {
    if (rate_ <= 0 || now - newest_ > kBin || now - local_at_ < kBin) return 0;
    const double bytes = static_cast<double>(std::min(left / kPartOfRest, room / kPartOfRoom));
    return std::min(kLongest, static_cast<Time>(bytes / rate_));
  }

 private:
  static constexpr Time kBin = 5 * kMillisecond;
  static constexpr Time kLongest = 400 * kMicrosecond;  // a sixth of what a report may wait anyway
  static constexpr uint64_t kPartOfRest = 16;           // the end of a transfer is not to come later for it
  static constexpr uint64_t kPartOfRoom = 8;            // nor is the socket to overflow when the process sleeps too long

  double rate_ = 0;  // bytes per nanosecond; 0: not known
  Time begun_ = 0, newest_ = 0;
  Time local_at_ = -kBin;
  uint64_t bytes_ = 0;
};

}  // namespace tailcut
