// Confirms a candidate of the search in the simulator that drives the production scheduler.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "plan/distserve/distserve.h"
#include "sim/placement_evaluator.h"

namespace millrace::experiments {

// Shares of the requests that the evaluator's trial of the same rate and seed gets, through the
// production scheduler (sim/fast/service.h). It mixes prefill and decode in a step, so "colocated"
// runs with steps of batch_tokens. The instances of all units serve together. One thread.
Result<plan::Attainment> ConfirmPlacement(sim::PlacementEvaluator& evaluator,
                                          const plan::DistServeUnit& unit, int units,
                                          double requests_per_s, uint64_t seed);

}  // namespace millrace::experiments
