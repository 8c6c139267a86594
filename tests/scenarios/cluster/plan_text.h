// Plans as short text, for scripts. Pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "core/plan.h"

namespace millrace::cluster {

// Chains of stages: "0-1 > 2-3; prefill 0-3 tp=2". A role holds to the end of its chain.
Result<Plan> ParseChains(const std::string& text, int num_layers);

// Named stages, and the flow between them in tokens per second:
// "a=0-1 b=0-1 c=2-3: in>a=3 in>b=1 a>c=3 b>c=1 c>out=4".
Result<Plan> ParseGraph(const std::string& text, int num_layers);

}  // namespace millrace::cluster
