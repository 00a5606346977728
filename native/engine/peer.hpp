// What one rank knows of another: the path to it, the path from it, and when it was last heard.
#pragma once

#include <vector>

#include "engine/port.hpp"
#include "engine/rate.hpp"
#include "engine/wire.hpp"

namespace tailcut {

struct Peer {
  Peer(const Options& options, uint32_t packet_bytes, bool is_local) : local(is_local), control(options, packet_bytes, is_local) {}

  bool local;           // on this host: no link to share
  RateControl control;
  PathMeter meter;

  // The path to the peer. Sequences count data packets from 1, unwrapped; only 16 bits travel.
  uint32_t sent = 0;          // the newest sent
  uint32_t reported = 0;      // the newest the peer says it has seen
  uint32_t given_up = 0;      // what was on its way when the path fell silent no longer counts as such
  uint32_t reported_received = 0;
  Time progress_at = 0;       // when the path was last known to move: a report, or the first packet into an idle path
  Time send_at = 0;           // pacing: not before
  Time share_at = 0;          // its share of the port: not before
  bool waiting = false;       // data was there, but it was not its time
  uint64_t look = 0;          // the last look at what to send that found something for it
  bool silent = false;        // gave up on what was on its way; no report since
  bool was_limited = false;   // the window held data back since the last report
  uint32_t hurried = 0;       // the newest packet that asked for a report at once
  Time told_at = 0;           // when it was last told that the group has failed

  uint32_t in_flight() const {
    const uint32_t by_report = sent - reported, by_silence = sent - given_up;
    return by_report < by_silence ? by_report : by_silence;
  }

  // The path from the peer.
  uint32_t seen = 0;          // the newest path sequence
  uint32_t received = 0;      // how many arrived
  uint16_t stamp = 0;         // of its newest packet
  Time stamp_at = 0;          // when that arrived
  Time data_at = 0;           // when the last data packet arrived
  Time data_pause = 0;        // smoothed, between batches of them
  uint32_t unreported = 0;
  Time report_at = kNever;    // when the next report is due
  bool report_queued = false;
  uint32_t report_copies = 1; // of the next report
  uint32_t ping_copies = 1;   // of the next ping

  // Things the next report should say beside the transfers in progress.
  struct Note {
    OpKey key;
    uint16_t transfer;
    uint8_t flags;
  };
  std::vector<Note> notes;
  static constexpr size_t kMaxNotes = 512;

  // Liveness.
  Time heard_at = 0;
  Time needed_since = kNever;  // an operation has been waiting for it since
  bool owes = false;               // data, or its announcement, to an operation that runs here
  bool needed_by_running = false;  // that, or word that it has what we sent
  Time ping_at = 0;
  bool abandoned = false;      // silent for so long that we no longer keep what it had not confirmed
  bool closed = false;         // it said goodbye
  Time closed_at = 0;

  // For the user.
  uint64_t packets_lost = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
};

}  // namespace tailcut
