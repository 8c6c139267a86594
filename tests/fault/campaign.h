// Campaign: many fault schedules, seed after seed, on a few threads. It ends at the first broken
// invariant (the lowest seed). The same seeds give the same totals for any number of threads.
//
// Run blocks its caller; any of its threads calls the progress callback, one at a time.
#pragma once

#include <functional>
#include <optional>

#include "tests/fault/lab.h"

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
  LabReport totals;  // summed; the violation is that of `broken_seed`
  std::optional<uint64_t> broken_seed;
};

// The seed that this thread is running; explains a crash.
std::optional<uint64_t> SeedOfThisThread();

// `progress(done)` returning false stops early.
CampaignResult RunCampaign(const CampaignOptions& options,
                           const std::function<bool(int64_t done)>& progress);

}  // namespace millrace::sim::fault
