// The protocol engine of one rank in one group. Bytes in, bytes out, time passed in: no socket, no clock, no thread.
//
// Four kinds of methods: commands (start, cancel, leave), input (receive, wake), output (poll_transmit, poll_event, wake_at) and
// getters. The UDP driver, the virtual network of the tests and the fuzzer all use exactly these.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/arrivals.hpp"
#include "engine/counters.hpp"
#include "engine/operation.hpp"
#include "engine/peer.hpp"
#include "engine/port.hpp"
#include "engine/wire.hpp"

namespace tailcut {

// A batch of datagrams to one peer: every one `segment_bytes` long but the last, which may be shorter.
struct Transmit {
  static constexpr uint32_t kMaxSegments = 64;
  struct Piece {
    const uint8_t* data;
    uint32_t bytes;
  };
  Rank to = 0;
  uint32_t segment_bytes = 0;
  uint32_t bytes = 0;
  uint32_t segments = 0;
  uint32_t pieces = 0;
  Piece piece[2 * kMaxSegments];
  uint8_t headers[kMaxSegments][kHeaderBytes];
  uint8_t control[kControlBytes + kHeaderBytes];  // for batches of one control packet
};

// How an operation ended.
struct Result {
  uint64_t ticket = 0;
  ErrorCode code = ErrorCode::kNone;
  std::vector<Rank> culprits;  // exactly who is to blame
  std::vector<Rank> waiting;   // who had only not finished yet
  Rank reporter = kNoRank;     // who told us, when we did not find it ourselves
  uint8_t stage = 0;
  Time elapsed = 0;
  uint64_t received_bytes = 0, expected_bytes = 0;
  uint64_t resent_packets = 0;
  Fingerprint ours, theirs;    // differ when code is kMismatch
  std::vector<Time> lags;      // by rank: how long after us it entered; kNever if it had not
};

class Engine {
 public:
  // `local[r]`: rank r is on this host. `payload`: bytes of one full packet without the header; a multiple of 8.
  Engine(uint32_t group, Rank rank, std::vector<bool> local, uint32_t payload, const Options& options);

  // Commands. The memory must stay valid until the result for the ticket has been polled.
  uint64_t start(Time now, std::shared_ptr<const Part> part, OpKey key, const Fingerprint& print, const void* input, void* output,
                 Time timeout);
  void cancel(Time now, uint64_t ticket);
  void leave(Time now);  // says goodbye; nothing can be started afterwards

  // Input. `arrived`: when the kernel had the datagram, at most now.
  void receive(Time now, Time arrived, Rank from, const uint8_t* data, size_t bytes);
  void wake(Time now);
  void count_kernel_drops(uint64_t packets) { counters_.dropped_socket_full += packets; }

  // Output.
  bool poll_transmit(Time now, Transmit& out);
  std::optional<Result> poll_event();
  Time wake_at() const;
  Time rest(Time now) const;  // so long what arrives may wait in the socket

  // Getters.
  const Counters& counters() const { return counters_; }
  Counters& counters() { return counters_; }
  const Peer& peer(Rank rank) const { return *peers_[rank]; }
  uint32_t size() const { return static_cast<uint32_t>(peers_.size()); }
  Rank rank() const { return rank_; }
  uint32_t group() const { return group_; }
  bool idle() const { return active_.empty(); }  // nothing running, nothing retained for peers
  const std::optional<Result>& failed() const { return failed_; }
  uint64_t retained_bytes() const { return retained_bytes_; }

 private:
  struct Active {
    Operation* op = nullptr;
    uint64_t ticket = 0;
    bool running = true;       // false: over here, kept for peers
    bool eager = false;
    Time started = 0, deadline = kNever;
    std::vector<Time> entered;      // by rank; kNever: not heard
    std::vector<uint8_t> confirmed; // by rank: it heard our Enter
    uint32_t enters_left = 0, confirms_left = 0;
    Time enter_at = kNever, enter_pause = 0;
    uint32_t enter_asks = 1;        // so often it was announced
    uint64_t resent = 0;
    uint64_t kept_bytes = 0;
  };
  struct Early {  // what came of an operation before the caller started it
    std::vector<std::pair<Rank, Fingerprint>> enters;
    struct Stored {
      Rank from;
      uint16_t transfer;
      uint32_t offset;
      std::vector<uint8_t> payload;
    };
    std::vector<Stored> data;
    std::optional<Result> fail;
  };
  struct Outgoing {  // a control packet to be built when it is its turn
    Kind kind;
    Rank to;
    OpKey key;
    Result fail;      // kFail
    bool group_scope = false;  // kFail
    bool asked = false;        // kEnter: the peer says that it lacks it
    uint32_t copies = 1;
  };
  struct TagState {
    uint32_t low = 0;                 // every sequence below is over
    std::vector<uint32_t> above;      // over, but above `low`
    bool over(uint32_t sequence) const;
    void finish(uint32_t sequence);
  };

  // engine.cpp: life of operations
  Operation* take_operation(const std::shared_ptr<const Part>& part);
  void release(Active& active);
  void replay_early(Time now, Active& active);
  void try_complete(Time now, Active& active);
  void settle_retained(Active& active);
  void confirm(Active& active, Rank from);
  void forget_peer(Rank gone);
  void release_peer(Active& active, Rank gone);
  void emit(Time now, Active& active, ErrorCode code, const Result& cause);
  void fail_operation(Time now, Active& active, const Result& cause, bool tell);
  void fail_group(Time now, const Result& cause, bool tell);
  void remember_failure(OpKey key, const Result& cause);
  void tell(Rank to, OpKey key, const Result& cause, bool group_scope);
  bool tell_if_failed(Rank to, OpKey key);
  void sweep();
  Active* find(OpKey key);
  bool is_over(OpKey key) const;

  // receive.cpp
  void on_data(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes);
  void stash(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes, bool ask);
  void replay(Time now, Active& active, Rank from);
  bool stashed(OpKey key, Rank from) const;
  void drop_early(OpKey key);
  void on_enter(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes);
  void accept_enter(Time now, Active& active, Rank from, const Fingerprint& print);
  void on_ping(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes);
  void on_fail(Time now, Rank from, const Header& header, const uint8_t* body, size_t bytes);
  void fail_as_told(Time now, Active& active, Result cause);
  Early* early(OpKey key);

  // reports.cpp
  void on_report(Time now, Time arrived, Rank from, uint16_t stamp, const uint8_t* body, size_t bytes);
  void on_path_state(Time now, Time arrived, Rank from, uint16_t stamp, const PathState& state);
  void on_entry(Time now, Rank from, const ReportEntry& entry, const uint8_t* ranges, uint32_t seen);
  void on_receiver_entry(Time now, Active& active, Rank from, const ReportEntry& entry);
  void repair(Time now, Active& active, SendState& send, uint32_t from_packet, uint32_t count, uint32_t seen, Rank peer);
  void build_report(Time now, Rank to, Transmit& out);
  size_t add_progress(Time now, Rank to, uint8_t* at, size_t room, uint16_t& entries);
  size_t add_entry(const Active& active, const RecvState& recv, uint8_t flags, uint8_t* at, size_t room);
  void note(Rank to, OpKey key, uint16_t transfer, uint8_t flags, Time now, Time at);
  void due(Rank to, Time at);
  void queue_report(Rank to);
  uint32_t window_for(Time now, const Peer& to) const;
  void adjust_port(Time now);

  // transmit.cpp
  bool transmit_control(Time now, Transmit& out);
  void build_control(Time now, const Outgoing& item, Transmit& out);
  void build_ping(Time now, Rank to, Transmit& out);
  bool transmit_data(Time now, Transmit& out);
  bool fill(Time now, size_t active_index, uint32_t send_index, Transmit& out);
  bool may_send(Time now, Peer& peer);
  static bool precedes(const SendState& a, const SendState& b);
  uint32_t take_packets(Time now, Active& active, SendState& send, Transmit& out, uint32_t budget, uint64_t& bytes_left);
  enum class Sending : uint8_t { kFirst, kAgain, kCopy };
  void put_packet(Time now, Active& active, SendState& send, uint32_t packet, Sending sending, Transmit& out);
  void begin_control(Time now, Kind kind, Rank to, OpKey key, Transmit& out);
  void finish_control(Transmit& out, size_t body_bytes);
  static void repeat_control(uint32_t copies, Transmit& out);
  // A peer so far away that to repair a repair would take long: repairs, questions and announcements are sent twice.
  static bool far(const Peer& peer) { return peer.control.min_rtt() >= 4 * kMillisecond; }
  static bool has_work(const SendState& send) { return send.resend_count > 0 || send.next < send.ready; }

  // timers.cpp
  void check_pause(Time now);
  void check_operations(Time now);
  void check_sends(Time now, Active& active, std::vector<uint8_t>& ask);
  void check_recvs(Time now, Active& active);
  void check_peers(Time now);
  void mark_needed(Time now);
  void wake_by(Time at) { timer_at_ = at < timer_at_ ? at : timer_at_; }

  const uint32_t group_;
  const Rank rank_;
  const Options options_;
  const Geometry geometry_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Active>> active_;  // in the order of their start
  std::unordered_map<uint64_t, Active*> by_key_;
  std::unordered_map<uint16_t, TagState> tags_;
  std::map<uint64_t, Early> early_;
  std::map<uint64_t, Result> failures_;  // of operations that are over, for peers that ask
  uint64_t stash_bytes_ = 0;
  std::vector<std::unique_ptr<Operation>> spare_;
  uint64_t retained_bytes_ = 0;
  std::deque<Outgoing> control_;
  std::deque<Rank> reports_;
  std::deque<Rank> pings_;
  std::deque<Result> events_;
  std::optional<Result> failed_;
  bool left_ = false;
  bool held_back_ = false;   // the retained pool had no room for an operation that is complete otherwise
  bool sweep_due_ = false;
  uint64_t next_ticket_ = 1;
  Port port_;
  Arrivals arrivals_;
  uint32_t beside_ = 1;      // peers served side by side at the last look at what to send
  uint64_t look_ = 0;        // counts these looks
  Time timer_at_ = kNever;   // next look at the timers
  Time pace_at_ = kNever;    // data waits for its turn
  Time woke_at_ = 0;
  Counters counters_;
};

}  // namespace tailcut
