#include "stage/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/no_token_left.h"
#include "core/portable_math.h"
#include "tensor/cpu/elementwise.h"

namespace millrace::stage {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

void KeepOnly(const std::vector<TokenId>& tokens, std::span<float> logits) {
  std::vector<float> kept;
  for (const TokenId token : tokens) kept.push_back(logits[static_cast<size_t>(token)]);
  std::ranges::fill(logits, kBanned);
  for (size_t i = 0; i < tokens.size(); ++i) logits[static_cast<size_t>(tokens[i])] = kept[i];
}

void KeepOnly(std::span<const uint32_t> allowed, std::span<float> logits) {
  constexpr size_t kBits = 32;
  const size_t words = std::min(allowed.size(), logits.size() / kBits);
  for (size_t w = 0; w < words; ++w) {
    if (allowed[w] == 0) {
      std::ranges::fill(logits.subspan(w * kBits, kBits), kBanned);
    } else if (allowed[w] != ~uint32_t{0}) {
      for (size_t bit = 0; bit < kBits; ++bit) {
        if ((allowed[w] >> bit & 1) == 0) logits[w * kBits + bit] = kBanned;
      }
    }
  }
  for (size_t t = words * kBits; t < logits.size(); ++t) {
    if (t / kBits >= allowed.size() || (allowed[t / kBits] >> t % kBits & 1) == 0) {
      logits[t] = kBanned;
    }
  }
}

bool AllBanned(std::span<const float> logits) {
  return std::ranges::all_of(logits, [](float logit) { return logit == kBanned; });
}

void ApplyBiasAndBans(std::span<float> logits, const SamplingParams& params, int generated,
                      std::span<const TokenId> eos) {
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (!params.allowed_token_ids.empty()) KeepOnly(params.allowed_token_ids, logits);
  if (generated >= params.min_tokens) return;
  for (TokenId token : eos) logits[static_cast<size_t>(token)] = kBanned;
  for (TokenId token : params.stop_token_ids) logits[static_cast<size_t>(token)] = kBanned;
}

// Bans the last token of each word whose other tokens are the last of the output.
void BanWords(std::span<float> logits, int position, const SamplingState& state) {
  const auto output = state.tokens().subspan(static_cast<size_t>(state.prompt_tokens()),
                                             static_cast<size_t>(position - state.prompt_tokens()));
  for (const std::vector<TokenId>& word : state.params().bad_words) {
    const std::span<const TokenId> begin(word.data(), word.size() - 1);
    if (begin.size() <= output.size() && std::ranges::equal(output.last(begin.size()), begin)) {
      logits[static_cast<size_t>(word.back())] = kBanned;
    }
  }
}

bool HasPenalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

bool HasMasks(const SamplingParams& p, int generated) {
  return generated < p.min_tokens || !p.allowed_token_ids.empty() || !p.bad_words.empty() ||
         !p.grammar.empty();
}

void ApplyPenalties(std::span<float> logits, int position, SamplingState& state) {
  const SamplingParams& p = state.params();
  if (!HasPenalties(p)) return;
  // One that is 0 as a float would make something that is no number of a logit that is banned.
  const float repetition =
      std::max(static_cast<float>(p.repetition_penalty), std::numeric_limits<float>::min());
  for (const auto& [token, count] : state.CountsUpTo(position)) {
    float& x = logits[static_cast<size_t>(token)];
    if (!std::isfinite(x)) continue;
    x = x > 0 ? x / repetition : x * repetition;
    if (count.output > 0) {
      x -= static_cast<float>(p.frequency_penalty * count.output + p.presence_penalty);
    }
    // A penalty is no ban. Very small ones divide to infinity.
    constexpr float kMost = std::numeric_limits<float>::max();
    x = std::clamp(x, -kMost, kMost);
  }
}

}  // namespace

SamplingState::SamplingState(const SequenceStart& start, GrammarSource* grammars)
    : params_(start.params),
      seed_(start.seed),
      prompt_tokens_(static_cast<int>(start.prompt->size())),
      tokens_(*start.prompt),
      pooler_(params_->pooling) {
  if (start.output) tokens_.insert(tokens_.end(), start.output->begin(), start.output->end());
  if (grammars != nullptr && !params_->grammar.empty()) {
    matcher_ = grammars->MatcherOf(params_->grammar);
  }
}

Result<std::span<const uint32_t>> SamplingState::AllowedAt(int position) {
  if (!matcher_) {
    return FailedPrecondition("the output is constrained, and this stage has no vocabulary");
  }
  const auto output = static_cast<size_t>(position - prompt_tokens_);
  return matcher_->Allowed(std::span(tokens_).subspan(static_cast<size_t>(prompt_tokens_), output));
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

bool NeedsTokenOnly(const SamplingState& state, int position) {
  const SamplingParams& p = state.params();
  return !p.logprobs && p.logit_bias.empty() && position - state.prompt_tokens() >= p.min_tokens &&
         !HasPenalties(p) && p.allowed_token_ids.empty() && p.bad_words.empty() &&
         p.grammar.empty() && !p.beam_search;
}

tensor::ChooseSpec HowToChoose(const SamplingState& state, int position) {
  const SamplingParams& p = state.params();
  return {p.temperature, p.top_k, p.top_p, p.min_p, state.seed(), position};
}

Status Sampler::ApplyGrammar(std::span<float> logits, int position, SamplingState& state,
                             std::span<const TokenId> eos) {
  MR_ASSIGN_OR_RETURN(const std::span<const uint32_t> allowed, state.AllowedAt(position));
  if (allowed.empty()) return OkStatus();
  KeepOnly(allowed, logits);
  if (!AllBanned(logits)) return OkStatus();
  // The end is left, if the text matches.
  for (const TokenId token : eos) logits[static_cast<size_t>(token)] = 0;
  KeepOnly(allowed, logits);
  return OkStatus();
}

Status NoToken(int position) {
  return Internal(
      fmt::format("no token can be chosen at position {}: a logit is not a number, or none is "
                  "finite",
                  position));
}

Result<Sampler::Choice> Sampler::Sample(std::span<float> logits, int position, SamplingState& state,
                                        std::span<const TokenId> eos) {
  const SamplingParams& params = state.params();
  if (params.beam_search) return OfferCandidates(logits, position, params, eos);
  Choice choice;
  std::vector<float> raw;
  if (params.logprobs) raw.assign(logits.begin(), logits.end());

  ApplyBiasAndBans(logits, params, position - state.prompt_tokens(), eos);
  BanWords(logits, position, state);
  ApplyPenalties(logits, position, state);
  if (!params.grammar.empty()) MR_RETURN_IF_ERROR(ApplyGrammar(logits, position, state, eos));
  const std::optional<TokenId> token = chooser_.Choose(logits, HowToChoose(state, position));
  if (!token && HasMasks(params, position - state.prompt_tokens()) && AllBanned(logits)) {
    return NoTokenLeft(fmt::format("no token is left to choose at position {}", position));
  }
  if (!token) return NoToken(position);
  choice.token = *token;
  if (params.logprobs) {
    choice.logprobs = LogprobsAt(raw, choice.token, *params.logprobs, params.logprob_token_ids);
  }
  return choice;
}

Result<Sampler::Choice> Sampler::OfferCandidates(std::span<const float> logits, int position,
                                                 const SamplingParams& params,
                                                 std::span<const TokenId> eos) {
  const std::optional<TokenId> likeliest = tensor::ArgMax(logits);
  if (!likeliest) return NoToken(position);
  return Choice{*likeliest, LogprobsAt(logits, *likeliest, BeamCandidates(params, eos))};
}

std::optional<PositionLogprobs> LogprobsAt(std::span<const float> logits, TokenId chosen, int top,
                                           std::span<const TokenId> others) {
  std::optional<TokenId> best = tensor::ArgMax(logits);
  if (!best) return std::nullopt;
  const float peak = logits[static_cast<size_t>(*best)];
  std::vector<float> weights(logits.size());
  tensor::ExpRow(logits, peak, 1.0f, weights.data());
  // The weights of a softmax, of which one is 1; with an infinite logit there are none.
  const double log_total = std::isinf(peak)
                               ? std::numeric_limits<double>::quiet_NaN()
                               : PortableLog(std::ldexp(tensor::SumOfWeights(weights), -40)) + peak;

  PositionLogprobs result;
  auto entry = [&](TokenId token, int rank) {
    const double logprob = logits[static_cast<size_t>(token)] - log_total;
    return TokenLogprob{token, static_cast<float>(logprob), rank};
  };
  const tensor::Likelier likelier{logits};
  const auto rank = [&](TokenId token) {
    int before = 0;
    for (int i = 0; i < static_cast<int>(logits.size()); ++i) before += likelier(i, token);
    return before + 1;
  };
  result.chosen = entry(chosen, rank(chosen));
  if (top > 0) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    top = std::min(top, static_cast<int>(order.size()));
    std::partial_sort(order.begin(), order.begin() + top, order.end(), likelier);
    for (int i = 0; i < top; ++i) result.top.push_back(entry(order[i], i + 1));
  }
  for (const TokenId token : others) result.top.push_back(entry(token, rank(token)));
  return result;
}

}  // namespace millrace::stage
