// Every packet that is not used is counted with a reason; so is every repair.
#pragma once

#include <cstdint>

namespace tailcut {

// X(name, what it counts)
#define TAILCUT_COUNTERS(X)                                                              \
  X(packets_received, "datagrams handed to the engine")                                  \
  X(packets_sent, "datagrams the engine produced")                                       \
  X(data_received, "data packets that brought new payload")                              \
  X(data_sent, "data packets sent for the first time")                                   \
  X(data_resent, "data packets sent again because a report asked for them")              \
  X(data_copied, "further copies of them, where repairs get lost too or the way is long")     \
  X(reports_received, "reports from peers")                                              \
  X(reports_sent, "reports to peers")                                                    \
  X(pings_sent, "questions to silent peers")                                             \
  X(enters_resent, "announcements repeated because nobody confirmed them")               \
  X(paths_silent, "times a path had packets on its way and reported nothing")            \
  X(packets_lost, "data packets that peers reported missing on the path")                \
  X(dropped_duplicate, "payload that was there already")                                 \
  X(dropped_stale, "packets of operations that are over")                                \
  X(dropped_stash_full, "early payload beyond the stash's bound; repaired later")        \
  X(dropped_early_full, "announcements too far ahead; repeated by the peer")             \
  X(dropped_malformed, "packets whose header or body makes no sense")                    \
  X(dropped_unexpected, "payload for a transfer that the Plan does not have")            \
  X(dropped_wrong_group, "packets of another group or an old epoch")                     \
  X(dropped_foreign, "packets from an address that is not the rank they name")           \
  X(dropped_truncated, "datagrams longer than the receive buffer")                       \
  X(dropped_socket_full, "datagrams the kernel dropped because the receive buffer was full") \
  X(send_errors, "datagrams the kernel refused to send")                                 \
  X(pauses, "times this rank found that it had itself been paused")

struct Counters {
#define TAILCUT_FIELD(name, text) uint64_t name = 0;
  TAILCUT_COUNTERS(TAILCUT_FIELD)
#undef TAILCUT_FIELD
};

}  // namespace tailcut
