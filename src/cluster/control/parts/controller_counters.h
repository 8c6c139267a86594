// ControllerCounters: what has happened in a cluster since the start of its controller, with the
// name and the help text of each counter. Values; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/worker_messages.h"

namespace millrace::cluster {

// KV that changes pipelines (transfers.h).
struct TransferCounters {
  uint64_t moves = 0, moves_failed = 0, moved_bytes = 0;  // hand-overs and migrations
  uint64_t hand_overs = 0, hand_overs_failed = 0;         // of the moves: from prefill to decode
  uint64_t drained_moved = 0;     // of the moves: away from a worker that drains
  uint64_t fetched = 0;           // replays that fetched recoverable KV
  uint64_t computed_in_part = 0;  // of these: only some layers computed again
  uint64_t fetch_too_slow = 0;    // replays that computed again what could have been fetched
  uint64_t pulls_failed = 0, leases_renewed = 0;
};

// Monotonic while the controller lives. AllControllerCounters lists every member.
struct ControllerCounters : TransferCounters {
  uint64_t joins = 0, joins_refused = 0, workers_lost = 0, workers_left = 0;
  uint64_t workers_still = 0;  // of the lost ones: their process lives
  uint64_t pipelines_opened = 0, pipelines_lost = 0;
  uint64_t layouts = 0, plans_applied = 0, plans_given_up = 0;
  uint64_t replays = 0, failed_by_losses = 0, expired = 0;
  uint64_t evictions = 0;  // requests that gave their KV to older ones of other pipelines
  // Requests of workers that drain: how those ended there that did not move.
  uint64_t drained_finished = 0, drained_replayed = 0;
  // Bytes of weights of the shards that workers loaded, by where they had them from.
  uint64_t weights_kept = 0, weights_from_peers = 0, weights_from_disk = 0;
  uint64_t profiles_refused = 0, links_probed = 0, probes_failed = 0;
  uint64_t protocol_violations = 0;
  uint64_t stale_messages = 0;  // for pipelines, shards and transfers that no longer exist

  void CountWeights(const ShardLoaded& loaded);
};

// A counter's name in /cluster/status and in /metrics, and its help text.
struct ControllerCounter {
  const char* name;
  const char* metric;
  const char* help;
  uint64_t ControllerCounters::*value;
};
std::span<const ControllerCounter> AllControllerCounters();

}  // namespace millrace::cluster
