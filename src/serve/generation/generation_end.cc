// How a generation ends: the answer, what is measured and logged of it.
#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <utility>

#include "serve/generation/generation.h"
#include "serve/observe/request_log.h"

namespace millrace::serve {

void Generation::Finish() {
  const UsageCounts usage = Usage();
  const auto kept = static_cast<size_t>(spec_.options.answers.value_or(spec_.options.params.n));
  std::vector<Choice> likeliest;
  if (spec_.options.answers) likeliest = TakeLikeliest(kept);
  std::vector<Choice>& answers = spec_.options.answers ? likeliest : choices_;
  if (!spec_.body.empty()) Log(answers);
  std::vector<TokenReports> reports;
  for (size_t i = 0; i < answers.size(); ++i) reports.push_back(prompts_[i / kept].reports);
  answer_.Finish(answers, usage, reports,
                 spec_.format.metrics ? prompts_.front().times : std::nullopt);
}

void Generation::Log(const std::vector<Choice>& answers) const {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t unix_ms = std::chrono::duration_cast<milliseconds>(now).count();
  const size_t each = answers.size() / prompts_.size();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    LoggedRequest logged{.unix_ms = unix_ms,
                         .id = spec_.head.id,
                         .chat = spec_.format.chat,
                         .fingerprint = answer_.Fingerprints(),
                         .body = spec_.body,
                         .prompt = spec_.prompts[i].tokens,
                         .seed = prompts_[i].seed,
                         .answers = {}};
    for (const Choice& choice : std::span(answers).subspan(i * each, each)) {
      logged.answers.push_back({choice.tokens(), choice.finish_reason()});
    }
    model_context_->log->Write(logged);
  }
}

// Of each prompt, the `kept` choices with the highest log-probability. Those of a beam search are
// in order.
std::vector<Choice> Generation::TakeLikeliest(size_t kept) {
  const auto n = static_cast<std::ptrdiff_t>(spec_.options.params.n);
  std::vector<Choice> answers;
  for (auto first = choices_.begin(); first != choices_.end(); first += n) {
    std::vector<Choice*> order;
    for (auto choice = first; choice != first + n; ++choice) order.push_back(&*choice);
    if (!spec_.options.params.beam_search) {
      std::ranges::stable_sort(order, std::greater<>(), &Choice::logprob);
    }
    for (Choice* choice : std::span(order).first(kept)) {
      choice->SetIndex(static_cast<int>(answers.size()));
      answers.push_back(std::move(*choice));
    }
  }
  return answers;
}

void Generation::ObserveLatency(const Mail& mail, PromptState& state, Choice& choice) {
  if (!state.first_token_seen) {
    state.first_token_seen = true;
    state.ttft = mail.at - spec_.arrived;
    model_context_->metrics.ObserveFirstToken(*state.ttft);
  } else if (choice.last_token_at) {
    model_context_->metrics.ObserveInterToken(mail.at - *choice.last_token_at);
  }
  choice.last_token_at = mail.at;
}

void Generation::EndRequest(const Mail& mail) {
  PromptState& state = prompts_[static_cast<size_t>(mail.prompt)];
  const bool whole = ++state.parts_ended == state.parts;
  std::string reason;
  int tokens = 0;
  if (whole) {
    const FinishedRequest finished = EndPrompt(mail);
    reason = finished.reason;
    tokens = finished.generation_tokens;
  }
  if (state.parts > 1) {
    const int n = spec_.options.params.n;
    const Choice& choice = choices_[static_cast<size_t>(mail.prompt * n + mail.output.index)];
    reason = choice.finish_reason();
    tokens = choice.generated_tokens();
  }
  model_context_->registry.End(mail.output.request, reason, tokens, mail.output.times,
                               mail.output.account);
}

FinishedRequest Generation::EndPrompt(const Mail& mail) {
  const SamplingParams& params = spec_.options.params;
  const PromptInput& input = spec_.prompts[static_cast<size_t>(mail.prompt)];
  FinishedRequest finished;
  finished.reason = "stop";
  for (int i = 0; i < params.n; ++i) {  // the worst reason of its sequences counts
    const Choice& choice = choices_[static_cast<size_t>(mail.prompt * params.n + i)];
    finished.generation_tokens += choice.generated_tokens();
    finished.longest_generation_tokens =
        std::max(finished.longest_generation_tokens, choice.generated_tokens());
    for (std::string_view reason : {"error", "abort", "length"}) {
      if (finished.reason == reason) break;
      if (choice.finish_reason() == reason) finished.reason = reason;
    }
  }
  finished.prompt_tokens = static_cast<int>(input.tokens.size());
  finished.cached_prompt_tokens = prompts_[static_cast<size_t>(mail.prompt)].cached_tokens;
  finished.n = params.n;
  finished.max_tokens = input.max_tokens;
  finished.e2e = mail.at - spec_.arrived;
  PromptState& state = prompts_[static_cast<size_t>(mail.prompt)];
  finished.ttft = state.ttft;
  finished.times = mail.output.times;
  state.ended = true;
  if (const auto phases = PhasesOf(*finished.times); phases && state.ttft) {
    state.times = AnswerTimes{*state.ttft, finished.e2e, *phases};
  }
  model_context_->metrics.ObserveFinished(finished);
  return finished;
}

void Generation::Fail(const ApiError& error) {
  answered_ = true;
  answer_.Fail(error);
  AbortAll();
}

UsageCounts Generation::Usage() const {
  UsageCounts usage;
  for (const PromptInput& prompt : spec_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
  }
  for (const PromptState& prompt : prompts_) usage.cached_tokens += prompt.cached_tokens;
  if (spec_.echo_only) return usage;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.generated_tokens();
    usage.reasoning_tokens += choice.reasoning_tokens();
  }
  return usage;
}

}  // namespace millrace::serve
