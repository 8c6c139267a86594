// Campaign: many fault schedules, seed after seed, on a few threads. The first broken invariant
// (the lowest seed) ends it. The same seeds give the same totals whatever the number of threads.
//
// Run blocks its caller; the progress callback is called by any of its threads, one at a time.
#pragma once

#include <functional>
#include <optional>

#include "sim/fault/lab.h"

namespace millrace::sim::fault {

struct CampaignOptions {
  uint64_t first_seed = 1;
  int64_t count = 1;
  int jobs = 1;
  ScenarioOptions scenario;
  LabOptions lab;
};

struct CampaignResult {
  int64_t schedules = 0;
  LabReport totals;  // summed; its violation is that of `broken_seed`
  std::optional<uint64_t> broken_seed;
};

// The seed this thread is running, for whoever explains a crash.
std::optional<uint64_t> SeedOfThisThread();

// `progress(done)` returning false stops early.
CampaignResult RunCampaign(const CampaignOptions& options,
                           const std::function<bool(int64_t done)>& progress);

}  // namespace millrace::sim::fault
