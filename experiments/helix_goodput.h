// The goodput of a placement (plan/estimate/rounds_goodput.h) with the published tables of Helix's
// simulator. Pure; any thread.
#pragma once

#include "core/cluster_spec.h"
#include "experiments/lib/helix/helix_model.h"
#include "plan/estimate/rounds_goodput.h"

namespace millrace::experiments {

// `flow` is without partial inference and outlives the result. `in_flight`: requests kept in the
// system.
plan::RoundsProblem HelixRounds(const helix::HelixModel& model, const ClusterSpec& cluster,
                                const plan::FlowProblem& flow, double in_flight);

}  // namespace millrace::experiments
