#include "cluster/control/parts/controller_counters.h"

#include <algorithm>
#include <array>

namespace millrace::cluster {
namespace {

using Counters = ControllerCounters;

constexpr auto kCounters = std::to_array<ControllerCounter>({
    {"joins", "millrace_cluster_worker_joins_total", "Workers that joined.", &Counters::joins},
    {"joins_refused", "millrace_cluster_worker_joins_refused_total",
     "Joins that were refused: different model or version, or name already in use.",
     &Counters::joins_refused},
    {"workers_lost", "millrace_cluster_workers_lost_total",
     "Workers whose session ended although they were not told to leave.", &Counters::workers_lost},
    {"workers_left", "millrace_cluster_workers_left_total",
     "Workers that left as planned: drained, or on notice of their machine.",
     &Counters::workers_left},
    {"workers_still", "millrace_cluster_workers_still_total",
     "Workers that were lost because they computed nothing although their process lives.",
     &Counters::workers_still},
    {"pipelines_opened", "millrace_cluster_pipelines_opened_total",
     "Pipelines opened over workers.", &Counters::pipelines_opened},
    {"pipelines_lost", "millrace_cluster_pipelines_lost_total",
     "Pipelines lost with a worker, a connection or a failed step.", &Counters::pipelines_lost},
    {"layouts", "millrace_cluster_plans_begun_total",
     "Plans that were begun, including automatic ones.", &Counters::layouts},
    {"plans_applied", "millrace_cluster_plans_applied_total", "Plans that came into force.",
     &Counters::plans_applied},
    {"plans_given_up", "millrace_cluster_plans_given_up_total",
     "Plans that were given up: they could not be loaded, or were no longer needed.",
     &Counters::plans_given_up},
    {"replays", "millrace_cluster_replays_total",
     "Requests that lost their pipeline and continued in another from the tokens they had.",
     &Counters::replays},
    {"fetched", "millrace_cluster_replays_with_kv_total",
     "Replays that fetched KV from surviving workers.", &Counters::fetched},
    {"computed_in_part", "millrace_cluster_replays_in_part_total",
     "Replays with KV that computed only some layers again.", &Counters::computed_in_part},
    {"fetch_too_slow", "millrace_cluster_replays_fetch_too_slow_total",
     "Replays that computed again what surviving workers had, because the links were slower.",
     &Counters::fetch_too_slow},
    {"failed_by_losses", "millrace_cluster_requests_failed_by_losses_total",
     "Requests that failed because pipelines were lost repeatedly while they ran.",
     &Counters::failed_by_losses},
    {"expired", "millrace_cluster_requests_expired_total",
     "Requests that failed because they waited too long for workers.", &Counters::expired},
    {"evictions", "millrace_cluster_evictions_total",
     "Requests that gave their KV memory to older requests of other pipelines and were computed "
     "again.",
     &Counters::evictions},
    {"moves", "millrace_cluster_moves_total",
     "Moves of a request and its KV to another pipeline that were begun.", &Counters::moves},
    {"moves_failed", "millrace_cluster_moves_failed_total",
     "Moves that failed; the request continued without that KV.", &Counters::moves_failed},
    {"drained_finished", "millrace_cluster_drained_finished_total",
     "Requests that ended on a worker that drains, before it had to leave.",
     &Counters::drained_finished},
    {"drained_moved", "millrace_cluster_drained_moved_total",
     "Requests that moved with their KV from a worker that drains.", &Counters::drained_moved},
    {"drained_replayed", "millrace_cluster_drained_replayed_total",
     "Requests that ran on a worker until its deadline came and were computed again elsewhere.",
     &Counters::drained_replayed},
    {"hand_overs", "millrace_cluster_hand_overs_total",
     "Moves from prefill to decode that were begun.", &Counters::hand_overs},
    {"hand_overs_failed", "millrace_cluster_hand_overs_failed_total",
     "Moves from prefill to decode that failed; some KV was computed again.",
     &Counters::hand_overs_failed},
    {"moved_bytes", "millrace_cluster_moved_bytes_total", "Bytes of KV that workers pulled.",
     &Counters::moved_bytes},
    {"pulls_failed", "millrace_cluster_pulls_failed_total",
     "Pulls of KV that a worker could not complete.", &Counters::pulls_failed},
    {"leases_renewed", "millrace_cluster_kv_leases_renewed_total",
     "Leases on KV that were renewed because the puller is alive.", &Counters::leases_renewed},
    {"weights_kept", "millrace_cluster_weight_bytes_kept_total",
     "Bytes of weights that a load found on its worker already.", &Counters::weights_kept},
    {"weights_from_peers", "millrace_cluster_weight_bytes_from_peers_total",
     "Bytes of weights that a load fetched from other workers.", &Counters::weights_from_peers},
    {"weights_from_disk", "millrace_cluster_weight_bytes_from_disk_total",
     "Bytes of weights that a load read from its worker's disk.", &Counters::weights_from_disk},
    {"profiles_refused", "millrace_cluster_profiles_refused_total",
     "Profiles of workers that were not used: damaged, of another model, or not plausible.",
     &Counters::profiles_refused},
    {"links_probed", "millrace_cluster_links_probed_total",
     "Links that were measured, between workers and with the controller.", &Counters::links_probed},
    {"probes_failed", "millrace_cluster_link_probes_failed_total",
     "Measurements of links that failed or gave numbers that no link has.",
     &Counters::probes_failed},
    {"protocol_violations", "millrace_cluster_protocol_violations_total",
     "Sessions of workers that were ended because they sent what no worker may send.",
     &Counters::protocol_violations},
    {"stale_messages", "millrace_cluster_stale_messages_total",
     "Messages dropped because their session, pipeline or transfer no longer exists.",
     &Counters::stale_messages},
});
static_assert(sizeof(Counters) == kCounters.size() * sizeof(uint64_t), "a counter is not listed");

}  // namespace

std::span<const ControllerCounter> AllControllerCounters() { return kCounters; }

void ControllerCounters::CountWeights(const ShardLoaded& loaded) {
  if (!loaded.status.ok()) return;
  const int64_t kept = std::clamp<int64_t>(loaded.kept_bytes, 0, loaded.weight_bytes);
  const int64_t peers = std::clamp<int64_t>(loaded.peer_bytes, 0, loaded.weight_bytes - kept);
  weights_kept += static_cast<uint64_t>(kept);
  weights_from_peers += static_cast<uint64_t>(peers);
  weights_from_disk += static_cast<uint64_t>(loaded.weight_bytes - kept - peers);
}

}  // namespace millrace::cluster
