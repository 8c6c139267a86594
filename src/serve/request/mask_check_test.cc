#include "serve/request/mask_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "core/output_grammar.h"

namespace millrace::serve {
namespace {

constexpr TokenId kEos = 7;

std::string Refusal(const std::function<void(SamplingParams&)>& change,
                    std::vector<uint32_t> constraint = {}) {
  SamplingParams params;
  change(params);
  const std::vector<TokenId> eos = {kEos};
  const auto error = CheckFirstToken(
      params,
      {.vocab_size = 8, .eos = eos, .constraint = constraint, .constraint_field = "guided_choice"});
  return error ? error->message : "";
}

TEST(MaskCheck, NamesTheFieldsThatLeaveNothingTogether) {
  struct Case {
    std::function<void(SamplingParams&)> change;
    std::vector<uint32_t> constraint;
    std::string begins;  // of the refusal; empty: it is none
  };
  const uint32_t one_and_two = 0b110, end_or_one = 0b10000010;
  const std::vector<Case> cases = {
      {[](auto&) {}, {}, ""},
      {[](auto& p) { p.allowed_token_ids = {kEos}; }, {}, ""},
      {[](auto& p) { p.allowed_token_ids = {kEos}, p.min_tokens = 1; },
       {},
       "allowed_token_ids and min_tokens leave no token"},
      {[](auto& p) {
         p.allowed_token_ids = {3, kEos}, p.min_tokens = 1;
       },
       {},
       ""},
      {[](auto& p) {
         p.allowed_token_ids = {3, kEos}, p.stop_token_ids = {3}, p.min_tokens = 1;
       },
       {},
       "allowed_token_ids and min_tokens leave"},
      {[](auto& p) {
         p.allowed_token_ids = {3, 4}, p.bad_words = {{3}, {4}};
       },
       {},
       "allowed_token_ids and bad_words leave"},
      {[](auto& p) {
         p.allowed_token_ids = {3, 4}, p.bad_words = {{3}, {4, 4}};
       },
       {},
       ""},
      {[](auto& p) {
         p.allowed_token_ids = {3, kEos}, p.bad_words = {{3}}, p.min_tokens = 2;
       },
       {},
       "allowed_token_ids and min_tokens and bad_words leave"},
      {[](auto& p) { p.bad_words = {{0}, {1}, {2}, {3}, {4}, {5}, {6}}, p.min_tokens = 2; },
       {},
       "min_tokens and bad_words leave"},
      {[](auto& p) { p.bad_words = {{0}, {1}, {2}, {3}, {4}, {5}, {6}}; }, {}, ""},
      {[](auto& p) { p.allowed_token_ids = {1}; }, {one_and_two}, ""},
      {[](auto& p) { p.allowed_token_ids = {3}; },
       {one_and_two},
       "allowed_token_ids and guided_choice leave"},
      {[](auto& p) {
         p.bad_words = {{1}, {2}};
       },
       {one_and_two},
       "bad_words and guided_choice"},
      // The text may be empty, so the answer ends at once.
      {[](auto& p) { p.allowed_token_ids = {3}, p.min_tokens = 4; }, {end_or_one}, ""},
  };
  for (const Case& c : cases) {
    const std::string refusal = Refusal(c.change, c.constraint);
    EXPECT_EQ(refusal.empty(), c.begins.empty()) << c.begins << ": " << refusal;
    EXPECT_TRUE(refusal.starts_with(c.begins)) << refusal;
  }
}

}  // namespace
}  // namespace millrace::serve
