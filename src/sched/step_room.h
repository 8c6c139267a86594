// StepRoom: how many tokens and sequences a step may have. With several stages, steps in flight
// share what there is, so that every stage has work. Pure functions of the scheduler's tables.
// Private to this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sched/request_table.h"
#include "sched/scheduler.h"
#include "sched/step_ledger.h"

namespace millrace::sched {

// Vectors of one step: its result is one message, and each may have 16,384 numbers.
inline constexpr int kVectorsPerStepMax = 512;

// The remaining room of the step being built.
struct StepRoom {
  std::optional<Verdict::Reason> refused;  // why the first waiting request could not start
  Time now;
  int tokens = 0;
  int tokens_in_all = 0;  // with those that are taken
  int sequences = 0;
  int vectors = kVectorsPerStepMax;  // of requests for one
  // Ready decodes after the current request; counted when needed.
  std::optional<int> decodes_behind;
  bool blocked = false;  // an earlier request waits for blocks: later ones must not take any
  std::vector<PreemptionRecord> preemptions;  // if there are any, this step admits no request
};

// Even steps spread waiting prompts over this many steps per stage. But a step adds prompts until
// it has one part in kFillTokens of the tokens it may have, because a step of very few tokens takes
// as long as one of some more.
inline constexpr int kFillSteps = 4;
inline constexpr int kFillTokens = 8;

// The room of the next step while nothing is in it.
StepRoom RoomOfNextStep(const SchedulerOptions& options, const StepLimits& limits,
                        const RequestTable& requests, const StepLedger& ledger);
// How many of the waiting prompts it may begin.
int64_t PromptsPerStep(const SchedulerOptions& options, const RequestTable& requests);

}  // namespace millrace::sched
