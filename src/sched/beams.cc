// The sequences of a beam search (vLLM section 4.4). Each has one beam. Once all of them have
// offered their candidates, the beams go on: a sequence whose beam ends without a child becomes a
// copy of another one, over the same blocks. It copies the last of them when it writes
// (copy-on-write), as after the fork of a prompt. An offer counts while the request runs; after a
// preemption the last token is computed again. Nothing is delivered before the search ends.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

// `kept`: the KV of the step still exists.
void SchedulerImpl::OfferBeam(Sequence& sequence, const SequenceResult& result, bool kept, Time now,
                              std::vector<RequestOutput>& outputs) {
  Request& r = *sequence.request;
  if (!kept || r.state != RequestState::kRunning) {
    sequence.computed = std::min(sequence.computed, r.TotalOf(sequence) - 1);
    return;
  }
  if (!result.logprobs || result.logprobs->top.empty()) {
    return Fail(sequence, Internal("the stage returned no candidates for a beam"), outputs);
  }
  if (!r.times.first_token) {
    r.times.first_token = now;
    stats_.prompt_tokens += r.prompt_tokens;
  }
  ++stats_.generation_tokens;
  order_->Charge(r.client, 0, 1);
  sequence.offered = true;
  r.beams->Offer(sequence.index, *result.logprobs);
  const bool all =
      std::ranges::all_of(r.sequences, [](const Sequence& s) { return !s.live() || s.offered; });
  if (!all) return;
  r.account.Token(now - r.times.last_token.value_or(now), static_cast<int>(sequence.output.size()));
  r.times.last_token = now;
  AdvanceBeams(r, outputs);
}

void SchedulerImpl::AdvanceBeams(Request& request, std::vector<RequestOutput>& outputs) {
  std::vector<const std::vector<TokenId>*> beams;
  for (const Sequence& s : request.sequences) beams.push_back(&s.output);
  const std::vector<BeamSearch::Child> children = request.beams->Advance(beams);
  if (children.empty()) return DeliverBeams(request, outputs);
  for (const BeamSearch::Child& child : children) {
    if (child.sequence == child.parent) continue;
    ForkBeam(request.sequences[static_cast<size_t>(child.parent)],
             request.sequences[static_cast<size_t>(child.sequence)]);
  }
  for (const BeamSearch::Child& child : children) {
    Sequence& s = request.sequences[static_cast<size_t>(child.sequence)];
    s.output.push_back(child.token);
    s.offered = false;
  }
  for (Sequence& s : request.sequences) {
    if (s.live() && s.offered) Discard(s);
  }
}

// To a stage the copy is a new sequence.
void SchedulerImpl::ForkBeam(const Sequence& parent, Sequence& child) {
  MR_CHECK(!child.in_flight && !parent.in_flight) << "a beam forks while it is computed";
  if (child.sent) builder_.Release(child.id);
  child.id = SequenceId(next_sequence_++);
  child.sent = false;
  child.sent_blocks = 0;
  FreeBlocks(kv_, child);
  kv_.Fork(parent.table, child.table);
  child.computed = parent.computed;
  child.computed_most = parent.computed_most;
  child.output = parent.output;
  child.chain = parent.chain;
}

// The answers in place of the beams. Those that were delivered before are left out.
void SchedulerImpl::DeliverBeams(Request& request, std::vector<RequestOutput>& outputs) {
  std::vector<BeamAnswer> answers = request.beams->TakeAnswers();
  answers.resize(request.sequences.size());
  std::vector<int> due;
  for (int i = 0; i < std::ssize(answers); ++i) {
    const auto place = static_cast<size_t>(i);
    if (place >= request.delivered.size() || !request.delivered[place]) due.push_back(i);
  }
  MR_CHECK(!due.empty()) << "every answer was delivered before";
  Sequence* last = nullptr;
  for (Sequence& s : request.sequences) {
    if (!s.live()) continue;
    if (last != nullptr) Discard(*last);
    last = &s;
  }
  FinishReason reason = FinishReason::kStop;
  for (const int i : due) {
    BeamAnswer& answer = answers[static_cast<size_t>(i)];
    RequestOutput& output = AppendOutput(*last, outputs);
    output.index = i;
    reason = answer.tokens.empty() ? FinishReason::kError : answer.finish;
    output.finish = reason;
    if (answer.tokens.empty()) output.error = Internal("the search found fewer answers than n");
    if (answer.finish == FinishReason::kStop && !answer.tokens.empty()) {
      output.stop_token = answer.tokens.back();
    }
    for (const TokenId token : answer.tokens) output.tokens.push_back(token);
    output.logprobs = std::move(answer.logprobs);
  }
  End(*last, reason, outputs.back());
}

}  // namespace millrace::sched
