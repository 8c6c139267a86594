#include "sim/load/prompts.h"

#include <algorithm>

#include "base/rng.h"

namespace millrace::sim {
namespace {

constexpr int kBlanksMax = 4096;  // lengths whose blank prompts are kept
constexpr uint64_t kOfPrefix = 1, kOfRequest = 2;

void Append(uint64_t seed, int count, std::vector<TokenId>& tokens) {
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(HashCounter(seed, static_cast<uint64_t>(i)) >> 33));
  }
}

}  // namespace

std::shared_ptr<const std::vector<TokenId>> Prompts::Of(const SimRequest& request, RequestId id) {
  if (!cached_) return Blank(request.prompt_tokens);
  auto prompt = std::make_shared<std::vector<TokenId>>();
  prompt->reserve(static_cast<size_t>(request.prompt_tokens));
  const auto left = [&] { return request.prompt_tokens - static_cast<int>(prompt->size()); };
  if (request.prefix != nullptr) {
    for (const int64_t part : request.prefix->ids) {
      Append(HashCounter(kOfPrefix, static_cast<uint64_t>(part)),
             std::min(request.prefix->tokens_per_id, left()), *prompt);
    }
  }
  Append(HashCounter(kOfRequest, id.value()), left(), *prompt);
  return prompt;
}

std::shared_ptr<const std::vector<TokenId>> Prompts::Blank(int tokens) {
  if (tokens >= kBlanksMax) return std::make_shared<const std::vector<TokenId>>(tokens);
  if (blanks_.empty()) blanks_.resize(kBlanksMax);
  auto& prompt = blanks_[static_cast<size_t>(tokens)];
  if (!prompt) prompt = std::make_shared<const std::vector<TokenId>>(tokens);
  return prompt;
}

}  // namespace millrace::sim
