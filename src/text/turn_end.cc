#include "text/turn_end.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/json.h"

namespace millrace::text {
namespace {

// Stands for the answer: private use characters, which no template tests for.
constexpr std::string_view kAnswer = "\uE000answer\uE001";

}  // namespace

std::optional<TokenId> TurnEnd(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string messages = DumpJson(
      {{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", kAnswer}}});
  const Result<std::string> rendered =
      chat_template.Render({.messages_json = messages, .add_generation_prompt = false});
  if (!rendered.ok()) return std::nullopt;
  const size_t answer = rendered->rfind(kAnswer);
  if (answer == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(*rendered).substr(answer + kAnswer.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  std::string_view found;
  for (const std::string& special : tokenizer.special_tokens()) {
    if (special.size() > found.size() && rest.starts_with(special)) found = special;
  }
  return found.empty() ? std::nullopt : tokenizer.IdOf(found);
}

}  // namespace millrace::text
