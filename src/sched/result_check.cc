#include "sched/result_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "sched/request.h"

namespace millrace::sched {
namespace {

Status Wrong(const StepLedger::Entry& entry, const std::string& what) {
  return InvalidArgument(
      fmt::format("request {}: {}", entry.sequence->request->spec.id.value(), what));
}

bool Contains(std::span<const TokenId> tokens, TokenId token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

// `most`: entries beside the chosen token.
Status CheckLogprobs(const PositionLogprobs& position, size_t most, const ResultBounds& bounds,
                     const StepLedger::Entry& entry) {
  if (position.top.size() > most) {
    return Wrong(entry,
                 fmt::format("{} log-probabilities for a position, at most {} were asked for",
                             position.top.size(), most));
  }
  const auto unknown = [&](const TokenLogprob& one) {
    return one.token < 0 || one.token >= bounds.vocab_size;
  };
  if (unknown(position.chosen) || std::ranges::any_of(position.top, unknown)) {
    return Wrong(entry, "a log-probability of a token that the model does not have");
  }
  return OkStatus();
}

Status CheckToken(const SequenceResult& result, const StepLedger::Entry& entry,
                  const ResultBounds& bounds, std::span<const TokenId> eos) {
  const SamplingParams& params = *entry.sequence->request->spec.params;
  const TokenId token = *result.token;
  if (token < 0 || token >= bounds.vocab_size) {
    return Wrong(entry,
                 fmt::format("token {} is outside the vocabulary of {}", token, bounds.vocab_size));
  }
  const std::vector<TokenId>& allowed = params.allowed_token_ids;
  if (!allowed.empty() && !Contains(allowed, token) && !Contains(eos, token)) {
    return Wrong(entry, fmt::format("token {} is not one of those that are allowed", token));
  }
  if (!params.grammar.empty() && bounds.grammars && !params.beam_search) {
    Sequence& sequence = *entry.sequence;
    if (!sequence.matcher) sequence.matcher = bounds.grammars->MatcherOf(params.grammar);
    if (!sequence.matcher->Takes(sequence.output, token, Contains(eos, token))) {
      return Wrong(entry, fmt::format("token {} does not match the grammar of the output", token));
    }
  }
  if (!result.logprobs) return OkStatus();
  const bool asked = params.logprobs || params.beam_search;
  if (!asked) return Wrong(entry, "log-probabilities that were not asked for");
  const size_t most = params.beam_search
                          ? static_cast<size_t>(BeamCandidates(params, eos))
                          : static_cast<size_t>(*params.logprobs) + params.logprob_token_ids.size();
  return CheckLogprobs(*result.logprobs, most, bounds, entry);
}

Status CheckVector(const SequenceResult& result, const StepLedger::Entry& entry,
                   const ResultBounds& bounds) {
  if (std::ssize(result.pooled) != bounds.vector_size) {
    return Wrong(entry, fmt::format("a vector of {} numbers, the model's have {}",
                                    result.pooled.size(), bounds.vector_size));
  }
  const bool finite =
      std::ranges::all_of(result.pooled, [](float value) { return std::isfinite(value); });
  return finite ? OkStatus() : Wrong(entry, "a vector with a number that is not finite");
}

Status CheckPromptLogprobs(const SequenceResult& result, const StepLedger::Entry& entry,
                           const ResultBounds& bounds) {
  if (result.prompt_logprobs.empty()) return OkStatus();
  const std::optional<int>& asked = entry.sequence->request->spec.params->prompt_logprobs;
  if (!asked || std::ssize(result.prompt_logprobs) > entry.num_tokens) {
    return Wrong(entry, fmt::format("log-probabilities of {} tokens of the prompt, at most {} were "
                                    "asked for",
                                    result.prompt_logprobs.size(), asked ? entry.num_tokens : 0));
  }
  for (const PositionLogprobs& position : result.prompt_logprobs) {
    MR_RETURN_IF_ERROR(CheckLogprobs(position, static_cast<size_t>(*asked), bounds, entry));
  }
  return OkStatus();
}

Status Check(const SequenceResult& result, const StepLedger::Entry& entry,
             const ResultBounds& bounds, std::span<const TokenId> eos) {
  const Request& r = *entry.sequence->request;
  if (result.id != entry.id) {
    return Wrong(entry, fmt::format("the result is of sequence {} in place of {}",
                                    result.id.value(), entry.id.value()));
  }
  if (!result.error.ok()) return OkStatus();
  MR_RETURN_IF_ERROR(CheckPromptLogprobs(result, entry, bounds));
  if (!entry.samples) return OkStatus();
  if (r.pools) return CheckVector(result, entry, bounds);
  if (!result.token) return Wrong(entry, "there is no token");
  return CheckToken(result, entry, bounds, eos);
}

}  // namespace

// A worker reports a step that failed in another way than by a result.
Status ResultCheck::StepError(const StepResult& result, size_t entries) {
  const bool counts_differ = result.error.ok() && result.sequences.size() != entries;
  if (result.error.ok() && !counts_differ) return OkStatus();
  const std::string counts =
      fmt::format("{} sequences for a step of {}", result.sequences.size(), entries);
  if (!bounds_) {
    return counts_differ ? Internal("the stage returned " + counts) : result.error;
  }
  wrong_ = InvalidArgument(
      counts_differ ? counts
                    : fmt::format("a step with the error: {}", Printable(result.error.message())));
  return OkStatus();
}

bool ResultCheck::Takes(const SequenceResult* result, const StepLedger::Entry& entry) {
  if (!bounds_) return true;
  if (result == nullptr) return false;
  Status sound = Check(*result, entry, *bounds_, eos_);
  if (sound.ok()) return true;
  wrong_ = std::move(sound);
  return false;
}

}  // namespace millrace::sched
