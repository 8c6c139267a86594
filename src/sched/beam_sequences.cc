#include "sched/beam_sequences.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sched {

bool BeamSequences::Offer(Sequence& sequence, const PositionLogprobs& candidates, bool kept) {
  Request& r = *sequence.request;
  if (!kept || r.state != RequestState::kRunning) {
    sequence.computed = std::min(sequence.computed, r.TotalOf(sequence) - 1);
    return false;
  }
  sequence.offered = true;
  r.beams->Offer(sequence.index, candidates);
  return std::ranges::all_of(r.sequences, [](const Sequence& s) { return !s.live() || s.offered; });
}

std::vector<Sequence*> BeamSequences::Advance(Request& request) {
  std::vector<const std::vector<TokenId>*> beams;
  for (const Sequence& s : request.sequences) beams.push_back(&s.output);
  const std::vector<BeamSearch::Child> children = request.beams->Advance(beams);
  ended_ = children.empty();
  if (ended_) Answer(request);
  for (const BeamSearch::Child& child : children) {
    if (child.sequence == child.parent) continue;
    Fork(request.sequences[static_cast<size_t>(child.parent)],
         request.sequences[static_cast<size_t>(child.sequence)]);
  }
  for (const BeamSearch::Child& child : children) {
    Sequence& s = request.sequences[static_cast<size_t>(child.sequence)];
    s.output.push_back(child.token);
    s.offered = false;
  }
  std::vector<Sequence*> without;
  for (Sequence& s : request.sequences) {
    if (s.live() && s.offered) without.push_back(&s);
  }
  if (ended_) without.pop_back();
  return without;
}

void BeamSequences::Fork(const Sequence& parent, Sequence& child) {
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

void BeamSequences::Answer(Request& request) {
  std::vector<BeamAnswer> answers = request.beams->TakeAnswers();
  answers.resize(request.sequences.size());
  outputs_.clear();
  for (int i = 0; i < std::ssize(answers); ++i) {
    const auto place = static_cast<size_t>(i);
    if (place < request.delivered.size() && request.delivered[place]) continue;
    BeamAnswer& answer = answers[place];
    RequestOutput& output = outputs_.emplace_back();
    output.request = request.spec.id;
    output.index = i;
    output.cached_prompt_tokens = request.cached_prompt_tokens;
    if (answer.tokens.empty()) {  // a vocabulary smaller than the width
      output.finish = FinishReason::kError;
      output.error = Internal("the search found fewer answers than n");
      continue;
    }
    output.finish = answer.finish;
    if (answer.finish == FinishReason::kStop) output.stop_token = answer.tokens.back();
    for (const TokenId token : answer.tokens) output.tokens.push_back(token);
    output.logprobs = std::move(answer.logprobs);
  }
  MR_CHECK(!outputs_.empty()) << "every answer was delivered before";
}

}  // namespace millrace::sched
