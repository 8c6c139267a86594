// BeamSearch: the n likeliest answers to a prompt, found by keeping the n likeliest beginnings
// (beams) of each length (vLLM section 4.4). After each step, the beams of a request offer their
// likeliest next tokens, and the best n of all of these become the next beams: a beam may go on in
// several ways, or in none.
//
// The score of an answer is the sum of its log-probabilities, divided by its length to the power of
// length_penalty. The length counts generated tokens, without the one that stops it. The search
// ends when no beam can become better than the n answers that have ended, so its result is that of
// a search up to the limit of tokens.
//
// Owned by a request of the scheduler; one thread. What the beams share in memory is the
// scheduler's: here a beam is the index of a sequence. Private to this folder.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/output.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"
#include "sched/scheduler.h"

namespace millrace::sched {

struct BeamAnswer {
  std::vector<TokenId> tokens;             // the one that stops it is the last
  std::vector<PositionLogprobs> logprobs;  // one per token, if asked
  double score = 0;
  FinishReason finish = FinishReason::kStop;
};

// What another scheduler needs to go on, beside the tokens of each beam.
struct BeamState {
  struct Beam {
    double logprob = 0;  // the sum over its tokens
    std::vector<PositionLogprobs> logprobs;
  };
  std::vector<Beam> beams;          // by sequence
  std::vector<BeamAnswer> answers;  // the best n that have ended, best first
};

class BeamSearch {
 public:
  // `output_limit`: tokens of an answer at most. `begun`: null at the beginning.
  BeamSearch(const SamplingParams& params, std::span<const TokenId> eos, int output_limit,
             const BeamState* begun);

  const BeamState& state() const { return state_; }
  // The candidates of one beam for its next token: `top`, likeliest first. A later offer replaces
  // an earlier one.
  void Offer(int sequence, PositionLogprobs candidates) {
    offers_[static_cast<size_t>(sequence)] = std::move(candidates);
  }
  // The beam of sequence `sequence` after the step: that of `parent` before it, and one more token.
  struct Child {
    int sequence = 0;
    int parent = 0;
    TokenId token = 0;
  };
  // Takes the offers and returns the next beams. A beam stays in its sequence if it goes on, and
  // its other children take sequences whose beams do not. Sequences that are not named have no beam
  // any more. Empty: the search has ended. `outputs`: the tokens of each sequence's beam; only the
  // sequences that have offered are read, and all of them have equally many.
  std::vector<Child> Advance(std::span<const std::vector<TokenId>* const> outputs);
  // The answers, best first. REQUIRES: the search has ended.
  std::vector<BeamAnswer> TakeAnswers() { return std::move(state_.answers); }

 private:
  struct Candidate {
    int parent = 0;
    int place = 0;  // in the parent's offer
    double logprob = 0;
  };
  bool Stops(TokenId token) const;
  double Score(double logprob, int length) const;
  std::vector<Candidate> Collect(std::span<const std::vector<TokenId>* const> outputs);
  void End(const Candidate& candidate, const std::vector<TokenId>& output, FinishReason reason);
  bool CanImprove(const Candidate& best, int length) const;
  std::vector<Child> Assign(std::span<const Candidate> kept);
  PositionLogprobs PositionOf(const Candidate& candidate) const;
  const TokenLogprob& TokenOf(const Candidate& candidate) const {
    return offers_[static_cast<size_t>(candidate.parent)]
        ->top[static_cast<size_t>(candidate.place)];
  }

  const size_t width_;
  const double length_penalty_;
  const std::optional<int> logprobs_;
  std::vector<TokenId> stops_;
  const int output_limit_;
  BeamState state_;
  std::vector<std::optional<PositionLogprobs>> offers_;  // by sequence
};

}  // namespace millrace::sched
