#include "core/output_grammar.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/sampling_params.h"

namespace millrace {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {
    "json_schema:", "regex:", "choice:", "lark:", "tags:", "reasoned:"};

}  // namespace

std::string GrammarOf(GrammarKind kind, std::string_view text) {
  return std::string(kKinds[static_cast<size_t>(kind)]).append(text);
}

Status CheckGrammar(std::string_view grammar) {
  if (grammar.size() > kGrammarBytesMax) {
    return InvalidArgument(fmt::format("the schema or grammar has {} bytes, and the limit is {}",
                                       grammar.size(), kGrammarBytesMax));
  }
  for (const std::string_view kind : kKinds) {
    if (!grammar.starts_with(kind)) continue;
    if (grammar.size() > kind.size()) return OkStatus();
    return InvalidArgument("the schema or grammar is empty");
  }
  return InvalidArgument(
      "grammar: its kind is not one of json_schema, regex, choice, lark, tags and reasoned");
}

bool InMask(std::span<const uint32_t> allowed, TokenId token) {
  constexpr uint32_t kBitsPerWord = 32;
  if (allowed.empty()) return true;
  const auto index = static_cast<uint32_t>(token);
  const size_t word = index / kBitsPerWord;
  return word < allowed.size() && (allowed[word] >> (index % kBitsPerWord) & 1) != 0;
}

}  // namespace millrace
