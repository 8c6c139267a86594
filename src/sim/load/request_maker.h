// RequestMaker: the requests that a simulated client sends. Owned by a simulator. One thread.
#pragma once

#include <memory>
#include <vector>

#include "core/ids.h"
#include "core/sampling_params.h"
#include "sched/scheduler.h"
#include "sim/load/prompts.h"
#include "sim/load/workload.h"

namespace millrace::sim {

// Parameters of a simulated request: exactly this many tokens.
std::shared_ptr<const SamplingParams> ParamsFor(int output_tokens);

class RequestMaker {
 public:
  // `cached`: some scheduler has a prefix cache.
  explicit RequestMaker(bool cached) : prompts_(cached) {}

  // The same in every call.
  sched::NewRequest Make(RequestId id, const SimRequest& request);

 private:
  Prompts prompts_;
  std::vector<std::shared_ptr<const SamplingParams>> params_;  // by output length
};

}  // namespace millrace::sim
