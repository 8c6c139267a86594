#include "cluster/control/pipelines/ttft_forecast.h"

#include <algorithm>

namespace millrace::cluster {

int64_t PrefillTokens(const sched::NewRequest& request) {
  int64_t tokens = std::ssize(*request.prompt);
  for (const sched::ResumedSequence& sequence : request.resumed) {
    if (!sequence.finished) tokens += std::max<int64_t>(std::ssize(sequence.output) - 1, 0);
  }
  for (int imported : request.imported_tokens) tokens -= imported;
  return std::max<int64_t>(tokens, 0);
}

std::optional<Duration> ForecastTtft(int prompt_tokens, const Pipelines& pipelines,
                                     const Requests& requests, bool apart) {
  // Requests in the queue will spread over the pipelines.
  int64_t queued = 0;
  for (RequestId id : requests.Queue()) {
    const Requests::Request& request = *requests.Find(id);
    if (request.waiting && request.delivered == 0) queued += PrefillTokens(*request.waiting);
  }
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
