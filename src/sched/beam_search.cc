#include "sched/beam_search.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/portable_math.h"

namespace millrace::sched {

BeamSearch::BeamSearch(const SamplingParams& params, std::span<const TokenId> eos, int output_limit,
                       const BeamState* begun)
    : width_(static_cast<size_t>(params.n)),
      length_penalty_(params.length_penalty),
      logprobs_(params.logprobs),
      stops_(params.stop_token_ids),
      output_limit_(output_limit),
      offers_(width_) {
  if (!params.ignore_eos) stops_.insert(stops_.end(), eos.begin(), eos.end());
  if (begun != nullptr) state_ = *begun;
  state_.beams.resize(width_);
}

bool BeamSearch::Stops(TokenId token) const {
  return std::ranges::find(stops_, token) != stops_.end();
}

double BeamSearch::Score(double logprob, int length) const {
  return logprob / PortablePow(std::max(length, 1), length_penalty_);
}

PositionLogprobs BeamSearch::PositionOf(const Candidate& candidate) const {
  const PositionLogprobs& offer = *offers_[static_cast<size_t>(candidate.parent)];
  PositionLogprobs position{.chosen = TokenOf(candidate), .top = {}};
  const size_t wanted = std::min(offer.top.size(), static_cast<size_t>(logprobs_.value_or(0)));
  position.top.assign(offer.top.begin(), offer.top.begin() + static_cast<ptrdiff_t>(wanted));
  return position;
}

void BeamSearch::End(const Candidate& candidate, const std::vector<TokenId>& output,
                     FinishReason reason) {
  BeamAnswer answer;
  const int length = static_cast<int>(output.size()) + (reason == FinishReason::kStop ? 0 : 1);
  answer.score = Score(candidate.logprob, length);
  std::vector<BeamAnswer>& answers = state_.answers;
  const auto place =
      std::ranges::upper_bound(answers, answer.score, std::greater<>(), &BeamAnswer::score);
  if (place == answers.end() && answers.size() == width_) return;
  answer.tokens = output;
  answer.tokens.push_back(TokenOf(candidate).token);
  answer.finish = reason;
  if (logprobs_) {
    answer.logprobs = state_.beams[static_cast<size_t>(candidate.parent)].logprobs;
    answer.logprobs.push_back(PositionOf(candidate));
  }
  answers.insert(place, std::move(answer));
  if (answers.size() > width_) answers.pop_back();
}

// The candidates that go on, likeliest first. Those that stop are answers. Before the first token
// all beams are the same, so only one of them counts.
std::vector<BeamSearch::Candidate> BeamSearch::Collect(
    std::span<const std::vector<TokenId>* const> outputs) {
  std::vector<Candidate> candidates;
  for (size_t parent = 0; parent < width_; ++parent) {
    if (!offers_[parent]) continue;
    const std::vector<TokenLogprob>& top = offers_[parent]->top;
    for (size_t place = 0; place < top.size(); ++place) {
      const Candidate candidate{static_cast<int>(parent), static_cast<int>(place),
                                state_.beams[parent].logprob + top[place].logprob};
      if (Stops(top[place].token)) {
        End(candidate, *outputs[parent], FinishReason::kStop);
      } else {
        candidates.push_back(candidate);
      }
    }
    if (outputs[parent]->empty()) break;
  }
  std::ranges::stable_sort(candidates, std::greater<>(), &Candidate::logprob);
  return candidates;
}

// A sum of log-probabilities only falls, and the score that it can still have is that of the length
// where the penalty is least.
bool BeamSearch::CanImprove(const Candidate& best, int length) const {
  if (state_.answers.size() < width_) return true;
  const int kindest = length_penalty_ > 0 ? output_limit_ : length;
  return Score(best.logprob, kindest) > state_.answers.back().score;
}

// A beam keeps its sequence for its likeliest child.
std::vector<BeamSearch::Child> BeamSearch::Assign(std::span<const Candidate> kept) {
  std::vector<Child> children;
  std::vector<BeamState::Beam> next(width_);
  std::vector<bool> taken(width_);
  std::vector<const Candidate*> others;
  const auto add = [&](size_t sequence, const Candidate& candidate) {
    taken[sequence] = true;
    children.push_back({static_cast<int>(sequence), candidate.parent, TokenOf(candidate).token});
    next[sequence].logprob = candidate.logprob;
    if (!logprobs_) return;
    next[sequence].logprobs = state_.beams[static_cast<size_t>(candidate.parent)].logprobs;
    next[sequence].logprobs.push_back(PositionOf(candidate));
  };
  for (const Candidate& candidate : kept) {
    const auto parent = static_cast<size_t>(candidate.parent);
    taken[parent] ? others.push_back(&candidate) : add(parent, candidate);
  }
  size_t free = 0;
  for (const Candidate* candidate : others) {
    while (taken[free] || !offers_[free]) ++free;
    add(free, *candidate);
  }
  state_.beams = std::move(next);
  return children;
}

std::vector<BeamSearch::Child> BeamSearch::Advance(
    std::span<const std::vector<TokenId>* const> outputs) {
  MR_CHECK(outputs.size() == width_);
  std::vector<Candidate> kept = Collect(outputs);
  const auto beams = static_cast<size_t>(
      std::ranges::count_if(offers_, [](const auto& offer) { return offer.has_value(); }));
  if (kept.size() > beams) kept.resize(beams);
  std::vector<Child> children;
  if (!kept.empty()) {
    const auto output_of = [&](const Candidate& candidate) -> const std::vector<TokenId>& {
      return *outputs[static_cast<size_t>(candidate.parent)];
    };
    const int length = static_cast<int>(output_of(kept.front()).size()) + 1;
    if (length == output_limit_) {
      for (const Candidate& c : kept) End(c, output_of(c), FinishReason::kLength);
    } else if (CanImprove(kept.front(), length)) {
      children = Assign(kept);
    }
  }
  std::ranges::fill(offers_, std::nullopt);
  return children;
}

}  // namespace millrace::sched
