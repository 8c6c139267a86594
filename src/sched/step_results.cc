#include "sched/step_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/no_token_left.h"
#include "sched/finish_rules.h"
#include "sched/prefetch.h"

namespace millrace::sched {
namespace {

void TakePromptLogprobs(const StepLedger::Entry& entry, const SequenceResult& result) {
  Request& r = *entry.sequence->request;
  if (r.pools || !r.WantsWholePrompt()) return;
  // The j-th belongs to token start + 1 + j; after preemption some are already known.
  const int known = static_cast<int>(r.prompt_logprobs.size());
  if (entry.start > known) return;
  for (int j = known - entry.start; j < std::ssize(result.prompt_logprobs) && r.WantsWholePrompt();
       ++j) {
    r.prompt_logprobs.push_back(result.prompt_logprobs[j]);
  }
}

}  // namespace

void StepResults::Apply(const StepResult& result, const StepLedger::Step& step, Time now,
                        std::vector<RequestOutput>& outputs) {
  const std::vector<StepLedger::Entry>& entries = step.entries;
  const Status error = check_.StepError(result, entries.size());
  const bool taken = error.ok() && check_.wrong().ok();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (const size_t next = i + 3 * kPrefetchAhead; next < entries.size()) {
      Prefetch(*entries[next].sequence);
      Prefetch(*entries[i + 2 * kPrefetchAhead].sequence->request);
      const Sequence& soon = *entries[i + kPrefetchAhead].sequence;
      PrefetchTails(soon, *soon.request);
    }
    ApplyOne(step, entries[i], error, taken ? &result.sequences[i] : nullptr, now, outputs);
  }
}

void StepResults::ApplyOne(const StepLedger::Step& step, const StepLedger::Entry& entry,
                           const Status& step_error, const SequenceResult* result, Time now,
                           std::vector<RequestOutput>& outputs) {
  Sequence& s = *entry.sequence;
  Request& r = *s.request;
  s.in_flight.reset();
  --r.in_flight;
  if (entry.id != s.id || !s.live()) parts_.builder.Release(entry.id);
  if (!s.live()) {
    return parts_.endings.NoteStepEnded(r);
  }
  parts_.accounting.StepEnded(entry, step, now);
  if (!step_error.ok()) return Fail(s, step_error, outputs);
  if (!check_.Takes(result, entry)) return;
  TakePromptLogprobs(entry, *result);
  if (!result->error.ok()) return Fail(s, result->error, outputs);
  if (result->id != entry.id) {
    return Fail(s,
                Internal(fmt::format("the stage returned sequence {} in place of {}",
                                     result->id.value(), entry.id.value())),
                outputs);
  }
  if (entry.samples && (r.pools ? result->pooled.empty() : !result->token)) {
    return Fail(s, Internal("the stage returned no token or no vector"), outputs);
  }
  if (entry.incarnation == s.incarnation) AdvanceComputed(entry);
  if (r.state == RequestState::kRunning) parts_.forks.MaybeStart(r);
  if (!entry.samples) return;
  if (r.beams) return TakeBeam(s, *result, entry.incarnation == s.incarnation, now, outputs);
  TakeOutput(s, *result, now, outputs);
}

void StepResults::AdvanceComputed(const StepLedger::Entry& entry) {
  Sequence& s = *entry.sequence;
  Request& r = *s.request;
  const int end = entry.start + entry.num_tokens;
  const int recomputed = std::clamp(s.computed_most - entry.start, 0, entry.num_tokens);
  parts_.stats.prompt_tokens_recomputed += recomputed;
  // Without its sampled token, the last known token must be computed again.
  s.computed = entry.samples ? end : std::min(end, r.TotalOf(s) - 1);
  s.computed_most = std::max(s.computed_most, s.computed);
  if (!parts_.kv.prefix_caching()) return;
  // Other requests can use a prompt at once, so it is indexed immediately. Outputs can wait:
  // hashing is the most expensive part of a decode step, so each sequence has its own turn within a
  // block's worth of steps.
  const auto turn = static_cast<uint64_t>(s.computed) + s.id.value();
  if (s.computed <= r.prompt_tokens || turn % parts_.options.block_size == 0)
    IndexPrefixes(parts_.kv, s);
}

// The token after so many comes now.
void StepResults::NoteOutput(Request& request, int tokens, Time now) {
  if (!request.times.first_token) {
    request.times.first_token = now;
    parts_.stats.prompt_tokens += request.prompt_tokens;
  }
  request.account.Token(now - request.times.last_token.value_or(now), tokens);
  request.times.last_token = now;
}

// A vector ends its request. For the times it counts as the first token.
void StepResults::TakeOutput(Sequence& sequence, const SequenceResult& result, Time now,
                             std::vector<RequestOutput>& outputs) {
  Request& r = *sequence.request;
  NoteOutput(r, static_cast<int>(sequence.output.size()), now);
  RequestOutput& output = AppendOutput(sequence, outputs);
  if (r.pools) {
    output.pooled = result.pooled;
    output.finish = FinishReason::kStop;
    return parts_.endings.End(sequence, FinishReason::kStop, output);
  }
  const TokenId token = *result.token;
  const bool first = sequence.output.empty();
  sequence.output.push_back(token);
  ++parts_.stats.generation_tokens;
  parts_.order.Charge(r, 0, 1);
  output.tokens.push_back(token);
  if (result.logprobs) output.logprobs.push_back(*result.logprobs);
  if (first) output.prompt_logprobs = r.prompt_logprobs;
  const int output_tokens = static_cast<int>(sequence.output.size());
  if (r.ends_by_length_only && output_tokens < r.output_limit) return;
  output.finish = FinishAfter(token, output_tokens, r.output_limit, *r.spec.params,
                              parts_.options.eos_token_ids);
  if (!output.finish) return;
  if (output.finish == FinishReason::kStop) output.stop_token = token;
  const FinishReason reason = *output.finish;
  if (reason == FinishReason::kLength && r.continues_elsewhere) {
    output.finish.reset();
    for (Sequence& s : r.sequences) {  // they begin elsewhere
      if (s.live() && &s != &sequence) parts_.endings.Discard(s);
    }
  }
  parts_.endings.End(sequence, reason, output);
}

// `kept`: the KV of the step still exists. Nothing is delivered before the search ends.
void StepResults::TakeBeam(Sequence& sequence, const SequenceResult& result, bool kept, Time now,
                           std::vector<RequestOutput>& outputs) {
  Request& r = *sequence.request;
  if (!result.logprobs || result.logprobs->top.empty()) {
    return Fail(sequence, Internal("the stage returned no candidates for a beam"), outputs);
  }
  if (!beams_.Offer(sequence, *result.logprobs, kept)) return;
  // Here and not per offer: those that a preemption drops are made again.
  parts_.stats.generation_tokens += static_cast<uint64_t>(r.live());
  parts_.order.Charge(r, 0, r.live());
  NoteOutput(r, static_cast<int>(sequence.output.size()), now);
  for (Sequence* without : beams_.Advance(r)) parts_.endings.Discard(*without);
  if (!beams_.ended()) return;
  for (RequestOutput& output : beams_.TakeOutputs()) outputs.push_back(std::move(output));
  parts_.endings.End(*std::ranges::find_if(r.sequences, &Sequence::live), *outputs.back().finish,
                     outputs.back());
}

// While the prompt is shared, its failure ends all sequences: the others would compute the same. A
// beam search ends as a whole. If the masks of the request leave no token, that cuts the answer as
// its length would.
void StepResults::Fail(Sequence& sequence, const Status& error,
                       std::vector<RequestOutput>& outputs) {
  Request& r = *sequence.request;
  const bool all = std::exchange(r.sharing_prompt, false) || r.beams;
  const bool cut = IsNoTokenLeft(error);
  const FinishReason reason = cut ? FinishReason::kLength : FinishReason::kError;
  for (Sequence& s : r.sequences) {
    if (!s.live() || (&s != &sequence && !all)) continue;
    RequestOutput& output = AppendOutput(s, outputs);
    output.finish = reason;
    if (!cut) output.error = error;
    if (cut && s.output.empty()) output.prompt_logprobs = r.prompt_logprobs;
    parts_.endings.End(s, reason, output);
  }
}

}  // namespace millrace::sched
