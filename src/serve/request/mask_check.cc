#include "serve/request/mask_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace millrace::serve {
namespace {

bool Contains(std::span<const TokenId> tokens, TokenId token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

// What stands in the way of a token at the beginning of an answer.
class Masks {
 public:
  Masks(const SamplingParams& params, const FirstToken& first) : params_(params), first_(first) {}

  bool Constrained() const { return !first_.constraint.empty(); }
  bool Matches(TokenId token) const {
    constexpr size_t kBits = 32;
    const auto t = static_cast<size_t>(token);
    return !Constrained() || (t / kBits < first_.constraint.size() &&
                              (first_.constraint[t / kBits] >> t % kBits & 1) != 0);
  }
  bool ByMinTokens(TokenId token) const {
    return params_.min_tokens > 0 &&
           (Contains(first_.eos, token) || Contains(params_.stop_token_ids, token));
  }
  bool ByBadWords(TokenId token) const {
    return std::ranges::any_of(params_.bad_words, [token](const std::vector<TokenId>& word) {
      return word.size() == 1 && word[0] == token;
    });
  }
  // An upper bound of how many tokens the two ban.
  size_t BannedMost() const {
    return params_.bad_words.size() + first_.eos.size() + params_.stop_token_ids.size();
  }

 private:
  const SamplingParams& params_;
  const FirstToken& first_;
};

}  // namespace

std::optional<ApiError> CheckFirstToken(const SamplingParams& params, const FirstToken& first) {
  const Masks masks(params, first);
  const bool chosen = !params.allowed_token_ids.empty();
  // An answer that matches may end, whatever else is banned.
  const bool may_be_empty =
      masks.Constrained() &&
      std::ranges::any_of(first.eos, [&masks](TokenId end) { return masks.Matches(end); });
  if (may_be_empty) return std::nullopt;
  bool by_min_tokens = false, by_bad_words = false, by_constraint = false;
  const auto left = [&](TokenId token) {
    // The first in the way; all of them are named.
    if (!masks.Matches(token)) {
      by_constraint = true;
    } else if (masks.ByMinTokens(token)) {
      by_min_tokens = true;
    } else if (masks.ByBadWords(token)) {
      by_bad_words = true;
    } else {
      return true;
    }
    return false;
  };
  if (chosen) {
    if (std::ranges::any_of(params.allowed_token_ids, left)) return std::nullopt;
  } else {
    if (!masks.Constrained() && masks.BannedMost() < static_cast<size_t>(first.vocab_size)) {
      return std::nullopt;
    }
    for (TokenId token = 0; token < first.vocab_size; ++token) {
      if (left(token)) return std::nullopt;
    }
  }
  std::vector<std::string> fields;
  if (chosen) fields.emplace_back("allowed_token_ids");
  if (by_min_tokens) fields.emplace_back("min_tokens");
  if (by_bad_words) fields.emplace_back("bad_words");
  if (by_constraint) fields.push_back(first.constraint_field);
  const std::string field = fields.front();
  return BadField(field,
                  fmt::format("{} leave no token that the answer may begin with: {}",
                              fmt::join(fields, " and "),
                              by_min_tokens ? "tokens that end an answer may not come before "
                                              "min_tokens; change one of them"
                                            : "no token satisfies them all; change one of them"));
}

}  // namespace millrace::serve
