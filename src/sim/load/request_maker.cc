#include "sim/load/request_maker.h"

#include <string>
#include <utility>

namespace millrace::sim {
namespace {

constexpr size_t kSharedMax = 4096;  // lengths whose parameters are shared

}  // namespace

std::shared_ptr<const SamplingParams> ParamsFor(int output_tokens) {
  auto params = std::make_shared<SamplingParams>();
  params->max_tokens = output_tokens;
  params->ignore_eos = true;
  params->temperature = 0;
  return params;
}

sched::NewRequest RequestMaker::Make(RequestId id, const SimRequest& request) {
  const auto output = static_cast<size_t>(request.output_tokens);
  std::shared_ptr<const SamplingParams> params;
  if (output < kSharedMax) {
    if (params_.empty()) params_.resize(kSharedMax);
    if (!params_[output]) params_[output] = ParamsFor(request.output_tokens);
    params = params_[output];
  } else {
    params = ParamsFor(request.output_tokens);
  }
  return {.id = id,
          .prompt = prompts_.Of(request, id),
          .params = std::move(params),
          .client = std::to_string(request.client),
          .known_output_tokens = request.output_tokens};
}

}  // namespace millrace::sim
