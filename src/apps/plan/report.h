// Formats a plan for people and programs: summary, pictures, JSON. Pure functions of the plan; any
// thread.
#pragma once

#include <string>

#include "base/json.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/planner.h"

namespace millrace::apps {

// One row per stage, ordered by its first layer: its layers drawn in `columns` characters, its
// range and its flow.
// The layers among all, from left to right: "..####....". At least one column is filled, also for
// layers out of range, which a server of another release may report. REQUIRES: columns > 0.
std::string LayerBar(LayerRange layers, int num_layers, int columns);
std::string PlanText(const Plan& plan, const ClusterSpec& cluster, int columns = 48);

// The same as a drawing, with flows between stages as lines; a line's width is its flow.
std::string PlanSvg(const Plan& plan, const ClusterSpec& cluster);

// A few lines: model, flow, bound, gap and method; then PlanText and the unused nodes.
// `steps_from`: as PlanInputs.
std::string PlanSummary(const plan::PlanOutcome& outcome, const ClusterSpec& cluster,
                        const std::string& rates_from, const std::string& steps_from = "");

// Of the nodes that the plan uses.
double PricePerHour(const Plan& plan, const ClusterSpec& cluster);

Json PlanJson(const plan::PlanOutcome& outcome, const ClusterSpec& cluster);

// Stages by their roles and layers.
std::vector<size_t> StageOrder(const Plan& plan);
// Tokens per second through each stage of the plan.
std::vector<double> StageFlows(const Plan& plan);

// "big-0" or "big-0 + big-1".
std::string StageName(const StagePlan& stage, const ClusterSpec& cluster);

}  // namespace millrace::apps
