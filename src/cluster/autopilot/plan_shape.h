// PlanShape: a plan as one line for people, equal for plans that place the same layers in the same
// roles on the same workers: "a 0-11, b 12-23, c 0-23 decode". A pure function.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/worker_plan.h"

namespace millrace::cluster {

// `workers`: the names of each stage's workers, by the plan's stages.
std::string PlanShape(const Plan& plan, std::span<const std::vector<std::string>> workers);
// The same with the names of the plan's nodes.
std::string PlanShape(const Plan& plan, std::span<const std::string> node_names);
// Those that get layers, each once.
std::vector<std::string> PlanWorkers(const WorkerPlan& plan);

}  // namespace millrace::cluster
