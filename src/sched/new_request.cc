#include "sched/new_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::sched {

Result<int> OutputLimitHere(const NewRequest& request, int max_model_len, int model_len_max) {
  const int64_t prompt = std::ssize(*request.prompt);
  const std::optional<int>& max_tokens = request.params->max_tokens;
  if (prompt == 0) return InvalidArgument("the prompt has no tokens");
  const std::optional<int> limit = OutputLimit(*request.params, prompt, max_model_len);
  if (!limit && request.params->pools()) {
    return InvalidArgument(
        fmt::format("the prompt has {} tokens, which exceeds the maximum context length of {}",
                    prompt, max_model_len));
  }
  if (!limit && prompt >= max_model_len) {
    return InvalidArgument(fmt::format(
        "the prompt has {} tokens, and with at least one generated token that exceeds the maximum "
        "context length of {}",
        prompt, max_model_len));
  }
  if (!limit) {
    return InvalidArgument(fmt::format(
        "the prompt ({} tokens) and max_tokens ({}) exceed the maximum context length of {} tokens "
        "by {}; shorten the prompt or lower max_tokens",
        prompt, *max_tokens, max_model_len, prompt + *max_tokens - max_model_len));
  }
  if (request.params->pools()) return *limit;
  const int here = max_tokens ? *limit : std::min(*limit, model_len_max - static_cast<int>(prompt));
  return request.stop_after_prompt ? std::min(here, 1) : here;
}

int BlocksAtMost(const NewRequest& request, int64_t output_tokens, int block_size) {
  const int64_t n = request.params->n, prompt = std::ssize(*request.prompt);
  const int64_t each = (prompt + output_tokens - 1 + block_size - 1) / block_size;
  const int64_t shared = n > 1 ? (prompt - 1) / block_size : 0;
  return static_cast<int>(shared + n * (each - shared));
}

bool ContinuesElsewhere(const NewRequest& request, int max_model_len) {
  const auto limit = OutputLimit(*request.params, std::ssize(*request.prompt), max_model_len);
  return request.stop_after_prompt && limit > 1;
}

bool NeedsWholePrompt(const NewRequest& request) {
  if (request.params->pooling == Pooling::kMean) return true;
  if (!request.params->prompt_logprobs) return false;
  return request.resumed.empty() ||
         std::ranges::any_of(request.resumed, [](const ResumedSequence& s) {
           return !s.finished && s.output.empty();
         });
}

Status CheckLength(size_t output, int output_limit) {
  if (std::cmp_less(output, output_limit)) return OkStatus();
  return InvalidArgument(fmt::format(
      "{} of {} tokens are already generated: there is nothing to do", output, output_limit));
}

Status CheckImportedTokens(int imported_tokens, int64_t known) {
  if (imported_tokens >= 0 && imported_tokens < known) return OkStatus();
  return InvalidArgument(fmt::format(
      "imported_tokens must be in [0, {}): the last known token is computed here, got {}", known,
      imported_tokens));
}

namespace {

Status CheckImports(const NewRequest& request) {
  const std::vector<int>& imported = request.imported_tokens;
  if (request.import_open && (imported.empty() || imported.front() == 0)) {
    return InvalidArgument("import_open needs imported_tokens");
  }
  if (imported.empty()) return OkStatus();
  if (std::ssize(imported) != request.params->n) {
    return InvalidArgument(fmt::format("imported_tokens has {} entries for {} sequences",
                                       imported.size(), request.params->n));
  }
  bool any = false;
  for (size_t i = 0; i < imported.size(); ++i) {
    const ResumedSequence* resumed = request.resumed.empty() ? nullptr : &request.resumed[i];
    if (resumed && resumed->finished) {
      if (imported[i] == 0) continue;
      return InvalidArgument(fmt::format("sequence {} has finished and imports nothing", i));
    }
    const int64_t output = resumed ? std::ssize(resumed->output) : 0;
    MR_RETURN_IF_ERROR(CheckImportedTokens(imported[i], std::ssize(*request.prompt) + output));
    any = any || imported[i] > 0;
  }
  if (any && NeedsWholePrompt(request)) {
    return InvalidArgument(
        "prompt log-probabilities and means need the prompt computed here, but its KV is imported");
  }
  return OkStatus();
}

}  // namespace

Status CheckHandOff(const NewRequest& request, int output_limit) {
  const int n = request.params->n;
  if (request.params->beam_search &&
      (request.stop_after_prompt || !request.imported_tokens.empty())) {
    return InvalidArgument("a beam search is computed in one place, from its prompt on");
  }
  const std::vector<ResumedSequence>& resumed = request.resumed;
  if (!resumed.empty() && std::ssize(resumed) != n) {
    return InvalidArgument(
        fmt::format("resumed has {} entries for {} sequences", resumed.size(), n));
  }
  if (!resumed.empty() && std::ranges::all_of(resumed, &ResumedSequence::finished)) {
    return InvalidArgument("every sequence has already finished");
  }
  for (const ResumedSequence& s : resumed) {
    if (!s.finished) MR_RETURN_IF_ERROR(CheckLength(s.output.size(), output_limit));
  }
  return CheckImports(request);
}

}  // namespace millrace::sched
