#include "tests/fault/campaign.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace millrace::sim::fault {
namespace {

thread_local std::optional<uint64_t> seed_of_this_thread;

void AddTo(LabReport& sum, const LabReport& one) {
  sum.events += one.events;
  sum.messages += one.messages;
  sum.duplicates += one.duplicates;
  sum.tokens += one.tokens;
  sum.errors += one.errors;
  sum.batches += one.batches;
  sum.pulls_served += one.pulls_served;
  sum.pulls_failed += one.pulls_failed;
  sum.collectives += one.collectives;
  sum.operations_refused += one.operations_refused;
  sum.virtual_s += one.virtual_s;
  sum.stale_at_workers += one.stale_at_workers;
  sum.withdrawn += one.withdrawn;
  sum.autopilot_changes += one.autopilot_changes;
  for (size_t k = 0; k < sum.faults.size(); ++k) sum.faults[k] += one.faults[k];
  ControllerTotals& c = sum.controller;
  const ControllerTotals& o = one.controller;
  c.pipelines_lost += o.pipelines_lost;
  c.pipelines_opened += o.pipelines_opened;
  c.replays += o.replays;
  c.fetched += o.fetched;
  c.computed_in_part += o.computed_in_part;
  c.moves += o.moves;
  c.moves_failed += o.moves_failed;
  c.failed_by_losses += o.failed_by_losses;
  c.stale += o.stale;
  c.joins += o.joins;
  c.joins_refused += o.joins_refused;
  c.workers_lost += o.workers_lost;
  c.workers_still += o.workers_still;
  c.plans_given_up += o.plans_given_up;
  c.leases_renewed += o.leases_renewed;
  c.drained_finished += o.drained_finished;
  c.drained_replayed += o.drained_replayed;
}

}  // namespace

std::optional<uint64_t> SeedOfThisThread() { return seed_of_this_thread; }

CampaignResult RunCampaign(const CampaignOptions& options,
                           const std::function<bool(int64_t done)>& progress) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> stop = false;
  Mutex mutex;
  CampaignResult result;  // guarded by mutex
  const auto work = [&] {
    while (!stop) {
      const int64_t i = next++;
      if (i >= options.count) return;
      const uint64_t seed = options.first_seed + static_cast<uint64_t>(i);
      seed_of_this_thread = seed;
      const LabReport report = Lab(MakeScenario(seed, options.scenario), options.lab).Run();
      seed_of_this_thread.reset();
      const MutexLock lock(mutex);
      ++result.schedules;
      AddTo(result.totals, report);
      if (report.violation) {
        stop = true;
        if (!result.broken_seed || seed < *result.broken_seed) {
          result.broken_seed = seed;
          result.totals.violation = report.violation;
        }
      }
      if (!progress(result.schedules)) stop = true;
    }
  };
  std::vector<std::thread> threads;
  for (int j = 1; j < options.jobs; ++j) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return result;
}

}  // namespace millrace::sim::fault
