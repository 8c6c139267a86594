// The option --dispatch of the commands that run a cluster and of `simulate`.
#pragma once

#include "apps/cli/option.h"
#include "cluster/control/routing/dispatch.h"

namespace millrace::apps {

// Target: DispatchPolicy, or std::optional of it if an absent option has its own meaning.
template <typename Target>
Option DispatchOption(Target* target) {
  using cluster::DispatchPolicy;
  return ChoiceOption<DispatchPolicy>("dispatch", target,
                                      {{"fewest", DispatchPolicy::kFewestRequests},
                                       {"round-robin", DispatchPolicy::kRoundRobin},
                                       {"random", DispatchPolicy::kRandom},
                                       {"predicted", DispatchPolicy::kPredictedTime}});
}

}  // namespace millrace::apps
