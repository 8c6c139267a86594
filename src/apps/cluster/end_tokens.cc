#include "apps/cluster/end_tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "text/turn_end.h"

namespace millrace::apps {
namespace {

constexpr int kTokensShown = 5;
constexpr size_t kTokenBytesShown = 40;

std::string TokenText(const LocalModel& model, TokenId id) {
  const std::string raw =
      model.tokenizer ? std::string(model.tokenizer->Token(id).raw) : std::string();
  return raw.empty() ? std::to_string(id)
                     : fmt::format("{} ({})", Printable(raw, kTokenBytesShown), id);
}

// The modes of sentence-transformers that `config` turns on: "mean_tokens", "lasttoken".
std::vector<std::string> PoolingModes(const Json& config) {
  constexpr std::string_view kBefore = "pooling_mode_";
  std::vector<std::string> modes;
  for (const auto& [key, value] : config.items()) {
    if (key == "pooling_mode" && value.is_string()) modes.push_back(value.get<std::string>());
    const bool on = value.is_boolean() && value.get<bool>();
    if (on && key.starts_with(kBefore)) modes.push_back(key.substr(kBefore.size()));
  }
  return modes;
}

// A text with such a token is refused when it comes.
void LogTokensBeyond(const LocalModel& model) {
  if (!model.tokenizer) return;
  std::string shown;
  int count = 0;
  for (TokenId id = model.spec.vocab_size; id < model.tokenizer->vocab_size(); ++id) {
    if (!model.tokenizer->Token(id).known) continue;
    if (++count > kTokensShown) continue;
    shown += fmt::format("{}{}", count == 1 ? "" : ", ", TokenText(model, id));
  }
  if (count == 0) return;
  MR_LOG(warn,
         "{}: the tokenizer has {} tokens for which the model has no embedding, because its "
         "vocabulary is {}: {}{}; requests whose text has one are refused",
         model.path.folder, count, model.spec.vocab_size, shown,
         count > kTokensShown ? ", ..." : "");
}

}  // namespace

std::vector<TokenId> EndTokens(const LocalModel& model) {
  std::vector<TokenId> ends;
  const auto add = [&](std::optional<TokenId> id) {
    if (!id || *id < 0 || *id >= model.spec.vocab_size) return;
    if (ends.size() == model::kEosTokensMax) return;  // as many as workers are told of
    if (std::ranges::find(ends, *id) == ends.end()) ends.push_back(*id);
  };
  for (const TokenId id : model.generation.eos) add(id);
  if (!model.tokenizer) return ends;
  add(model.tokenizer->eos());
  if (model.chat_template) add(text::TurnEnd(*model.chat_template, *model.tokenizer));
  return ends;
}

std::string EndTokensText(const LocalModel& model) {
  std::string text;
  for (const TokenId id : EndTokens(model)) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", TokenText(model, id));
  }
  return text.empty() ? "none known: answers end at their length" : text;
}

std::string PoolingNote(const std::string& folder) {
  const std::string path = folder + "/1_Pooling/config.json";
  const Result<std::string> text = ReadFile(path, model::kConfigBytesMax);
  if (!text.ok()) return "";
  const Result<Json> config = ParseJson(*text);
  if (!config.ok() || !config->is_object()) return fmt::format("{}: not a JSON object", path);
  const std::vector<std::string> modes = PoolingModes(*config);
  if (modes.empty() || modes == std::vector<std::string>{"lasttoken"}) return "";
  const bool mean = modes.size() == 1 && (modes[0] == "mean_tokens" || modes[0] == "mean");
  return fmt::format("{}: it names the pooling {}: {}", path,
                     Printable(fmt::format("{}", fmt::join(modes, ", ")), 80),
                     mean ? "send \"pooling\": \"mean\" with requests for embeddings, scores and "
                            "rankings; without it the last token makes the vector"
                          : "requests have \"last\" and \"mean\" only, so vectors are not those "
                            "that the model was trained for");
}

void LogFolderNotes(const LocalModel& model) {
  for (const std::string& note : model.generation.notes) MR_LOG(warn, "{}", note);
  for (const std::string& note : model.notes) MR_LOG(warn, "{}", note);
  if (const std::string note = PoolingNote(model.path.folder); !note.empty()) {
    MR_LOG(warn, "{}", note);
  }
  LogTokensBeyond(model);
}

}  // namespace millrace::apps
