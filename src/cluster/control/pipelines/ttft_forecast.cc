#include "cluster/control/pipelines/ttft_forecast.h"

#include <algorithm>

namespace millrace::cluster {

std::optional<Duration> ForecastTtft(int prompt_tokens, const Pipelines& pipelines,
                                     const Requests& requests, bool apart) {
  // Requests in the queue will spread over the pipelines.
  const int64_t queued = requests.waiting_prefill_tokens();
  std::optional<double> least_s;
  double all_tokens_per_s = 0;
  for (const auto& [id, pipeline] : pipelines.all()) {
    const bool computes_prompts =
        pipeline.role == StageRole::kBoth || (pipeline.role == StageRole::kPrefill && apart);
    const auto rate = pipeline.prefill.measured_tokens_per_s();
    if (!pipeline.open || pipeline.retiring || !computes_prompts || !rate) continue;
    const auto ahead = static_cast<double>(pipeline.requests.prefill_tokens_ahead());
    const double seconds = (ahead + prompt_tokens) / *rate;
    least_s = std::min(least_s.value_or(seconds), seconds);
    all_tokens_per_s += *rate;
  }
  if (!least_s) return std::nullopt;
  return Duration::Seconds(*least_s + static_cast<double>(queued) / all_tokens_per_s);
}

}  // namespace millrace::cluster
