#include "stage/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "tensor/cpu/elementwise.h"

namespace millrace::stage {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// The index of the largest logit, the smallest index on ties; nullopt when one is NaN or none is
// above -inf. Uses independent lanes, because a single running maximum would not be vectorised.
std::optional<TokenId> ArgMax(std::span<const float> logits) {
  constexpr size_t kPipelines = 32;
  float best[kPipelines];
  int nan[kPipelines] = {};
  std::fill_n(best, kPipelines, kBanned);
  auto see = [&](size_t pipeline, float x) {
    best[pipeline] = x > best[pipeline] ? x : best[pipeline];
    nan[pipeline] |= x != x;
  };
  size_t i = 0;
  for (; i + kPipelines <= logits.size(); i += kPipelines) {
    for (size_t pipeline = 0; pipeline < kPipelines; ++pipeline)
      see(pipeline, logits[i + pipeline]);
  }
  for (; i < logits.size(); ++i) see(0, logits[i]);
  const float peak = *std::max_element(best, best + kPipelines);
  const bool any_nan = std::any_of(nan, nan + kPipelines, [](int n) { return n != 0; });
  if (any_nan || peak == kBanned) return std::nullopt;
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), peak) - logits.begin());
}

void ApplyBiasAndBans(std::span<float> logits, const SamplingParams& params, int generated,
                      std::span<const TokenId> eos) {
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (generated >= params.min_tokens) return;
  for (TokenId token : eos) logits[static_cast<size_t>(token)] = kBanned;
  for (TokenId token : params.stop_token_ids) logits[static_cast<size_t>(token)] = kBanned;
}

void ApplyPenalties(std::span<float> logits, int position, SamplingState& state) {
  const SamplingParams& p = state.params();
  if (p.repetition_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0) return;
  const auto repetition = static_cast<float>(p.repetition_penalty);
  for (const auto& [token, count] : state.CountsUpTo(position)) {
    float& x = logits[static_cast<size_t>(token)];
    x = x > 0 ? x / repetition : x * repetition;
    if (count.output > 0) {
      x -= static_cast<float>(p.frequency_penalty * count.output + p.presence_penalty);
    }
  }
}

struct Likelier {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

}  // namespace

SamplingState::SamplingState(const SequenceStart& start)
    : params_(start.params),
      seed_(start.seed),
      prompt_tokens_(static_cast<int>(start.prompt->size())),
      tokens_(*start.prompt) {
  if (start.output) tokens_.insert(tokens_.end(), start.output->begin(), start.output->end());
}

void SamplingState::Record(int position, std::span<const TokenId> tokens) {
  const size_t end = static_cast<size_t>(position) + tokens.size();
  if (tokens_.size() < end) tokens_.resize(end);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + position);
}

const std::unordered_map<TokenId, SamplingState::Count>& SamplingState::CountsUpTo(int length) {
  MR_CHECK(static_cast<size_t>(length) <= tokens_.size()) << "sampling past the recorded tokens";
  if (counted_ > length) {
    counts_.clear();
    counted_ = 0;
  }
  for (; counted_ < length; ++counted_) {
    Count& count = counts_[tokens_[static_cast<size_t>(counted_)]];
    if (counted_ < prompt_tokens_) {
      count.prompt = true;
    } else {
      ++count.output;
    }
  }
  return counts_;
}

Result<Sampler::Choice> Sampler::Sample(std::span<float> logits, int position, SamplingState& state,
                                        std::span<const TokenId> eos) {
  const SamplingParams& params = state.params();
  Choice choice;
  std::vector<float> raw;
  if (params.logprobs) raw.assign(logits.begin(), logits.end());

  ApplyBiasAndBans(logits, params, position - state.prompt_tokens(), eos);
  ApplyPenalties(logits, position, state);
  std::optional<TokenId> best = ArgMax(logits);
  if (!best) {
    return Internal(fmt::format(
        "no token can be chosen at position {}: a logit is not a number or all are banned",
        position));
  }
  if (params.greedy() || params.top_k == 1) {
    choice.token = *best;
  } else {
    const uint64_t bits = HashCounter(state.seed(), static_cast<uint64_t>(position));
    choice.token = Draw(logits, logits[static_cast<size_t>(*best)], params, UnitDouble(bits));
  }
  if (params.logprobs) choice.logprobs = LogprobsAt(raw, choice.token, *params.logprobs);
  return choice;
}

// Inverse of the cumulative distribution over the kept tokens: in vocabulary order if no rank limit
// applies (then no sort is needed), else likeliest first.
TokenId Sampler::Draw(std::span<const float> logits, float top, const SamplingParams& params,
                      double uniform) {
  const auto inverse_temperature = static_cast<float>(1.0 / params.temperature);
  weights_.resize(logits.size());
  double total = 0;
  tensor::ExpRow(logits, top, inverse_temperature, weights_.data());
  for (float w : weights_) total += w;
  if (params.top_k == 0 && params.top_p >= 1) {
    return DrawInVocabularyOrder(static_cast<float>(params.min_p), uniform);
  }
  const auto [kept, mass] = KeepLikeliest(logits, params, total);
  double left = uniform * mass;
  for (int i = 0; i < kept; ++i) {
    if ((left -= weights_[static_cast<size_t>(order_[i])]) < 0) return order_[i];
  }
  return order_[kept - 1];
}

TokenId Sampler::DrawInVocabularyOrder(float min_weight, double uniform) const {
  double mass = 0;
  for (float w : weights_) mass += w >= min_weight ? w : 0;
  double left = uniform * mass;
  TokenId last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const float w = weights_[i];
    if (w < min_weight || w == 0) continue;
    last = static_cast<TokenId>(i);
    if ((left -= w) < 0) break;
  }
  return last;
}

// Moves the tokens that top-k, top-p (of what top-k leaves) and min-p keep to the head of order_;
// returns their number and weight. Sorts only as much of the head as needed.
std::pair<int, double> Sampler::KeepLikeliest(std::span<const float> logits,
                                              const SamplingParams& params, double total) {
  const auto vocab = static_cast<int>(logits.size());
  const int limit = params.top_k > 0 ? std::min(params.top_k, vocab) : vocab;
  const auto min_weight = static_cast<float>(params.min_p);  // the top token's weight is 1
  const Likelier likelier{logits};
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  int sorted = 0;
  auto sort_to = [&](int next) {
    std::partial_sort(order_.begin() + sorted, order_.begin() + next, order_.end(), likelier);
    sorted = next;
  };
  if (limit < vocab) {
    sort_to(limit);
    total = 0;
    for (int i = 0; i < limit; ++i) total += weights_[static_cast<size_t>(order_[i])];
  }
  int kept = 0;
  double mass = 0;
  for (; kept < limit; ++kept) {
    if (kept == sorted) sort_to(std::min(limit, std::max(64, sorted * 8)));
    const float w = weights_[static_cast<size_t>(order_[kept])];
    if (kept > 0 && (mass >= params.top_p * total || w < min_weight)) break;
    mass += w;
  }
  return {kept, mass};
}

std::optional<PositionLogprobs> LogprobsAt(std::span<const float> logits, TokenId chosen, int top) {
  std::optional<TokenId> best = ArgMax(logits);
  if (!best) return std::nullopt;
  const float peak = logits[static_cast<size_t>(*best)];
  std::vector<float> weights(logits.size());
  tensor::ExpRow(logits, peak, 1.0f, weights.data());
  double total = 0;
  for (float w : weights) total += w;
  const double log_total = std::log(total) + peak;

  PositionLogprobs result;
  auto entry = [&](TokenId token, int rank) {
    const double logprob = logits[static_cast<size_t>(token)] - log_total;
    return TokenLogprob{token, static_cast<float>(logprob), rank};
  };
  const Likelier likelier{logits};
  int before = 0;
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) before += likelier(i, chosen);
  result.chosen = entry(chosen, before + 1);
  if (top > 0) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    top = std::min(top, static_cast<int>(order.size()));
    std::partial_sort(order.begin(), order.begin() + top, order.end(), likelier);
    for (int i = 0; i < top; ++i) result.top.push_back(entry(order[i], i + 1));
  }
  return result;
}

}  // namespace millrace::stage
