// Encodes prompts and conversations to token ids.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>

#include "base/rng.h"
#include "serve/limits.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

// The local wall clock, which strftime_now shows in a template.
int64_t CivilSeconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return int64_t{now} + local.tm_gmtoff;
}

}  // namespace

std::string NewId(const std::string& prefix, uint64_t number) {
  static const uint64_t process = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  return fmt::format("{}{:016x}{:016x}", prefix, HashCounter(process, 2 * number),
                     HashCounter(process, 2 * number + 1));
}

int64_t UnixSeconds() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

namespace {

// Stands for the end of the last message while a template is rendered: private use characters.
constexpr std::string_view kEndMark = "\uE000end\uE001";
constexpr std::string_view kWhiteSpace = " \t\r\n";

// The last message with the mark after its content, before white space at its end.
std::string MarkEnd(const std::string& messages, std::string& white_space) {
  auto list = nlohmann::ordered_json::parse(messages);
  auto content = list.back()["content"].get<std::string>();
  const size_t end = content.find_last_not_of(kWhiteSpace) + 1;
  white_space = content.substr(end);
  content.insert(end, kEndMark);
  list.back()["content"] = content;
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Cuts what the template puts after the last message. White space at its end stays if the template
// kept it.
bool CutAtMark(std::string& prompt, const std::string& white_space) {
  const size_t mark = prompt.rfind(kEndMark);
  if (mark == std::string::npos) return false;
  const size_t after = mark + kEndMark.size();
  const bool kept = prompt.compare(after, white_space.size(), white_space) == 0;
  prompt.resize(mark);
  if (kept) prompt += white_space;
  return true;
}

}  // namespace

Parsed<std::vector<TokenId>> EncodeText(const ServedModel& model, const std::string& text,
                                        const text::EncodeOptions& options,
                                        const std::string& param, bool any_length) {
  if (!any_length && text.size() / kBytesPerTokenMax > static_cast<size_t>(model.max_model_len)) {
    return ContextTooLongText(model.max_model_len, text.size(), param);
  }
  Result<std::vector<TokenId>> tokens = model.tokenizer->Encode(text, options);
  if (!tokens.ok()) return FromStatus(tokens.status(), param);
  for (TokenId token : *tokens) {
    if (token < 0 || token >= model.spec.vocab_size) {
      return BadField(param,
                      fmt::format("{} has token {}, which is outside the model's vocabulary of "
                                  "{} tokens: the tokenizer does not match the model",
                                  param, token, model.spec.vocab_size));
    }
  }
  if (tokens->empty()) return BadField(param, param + " has no tokens");
  return std::move(tokens).value();
}

Parsed<std::vector<std::vector<TokenId>>> BadWordTokens(const ServedModel& model,
                                                        const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> found;
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size() - 1));
    for (const std::string& text : {bare, " " + bare}) {
      Parsed<std::vector<TokenId>> tokens =
          EncodeText(model, text, {.add_special_tokens = false}, "bad_words", true);
      if (auto* error = std::get_if<ApiError>(&tokens)) return std::move(*error);
      std::vector<TokenId>& ids = std::get<std::vector<TokenId>>(tokens);
      if (ids.size() > static_cast<size_t>(kBadWordTokensMax)) {
        return BadField("bad_words", fmt::format("a word of bad_words has {} tokens, the limit is "
                                                 "{}",
                                                 ids.size(), kBadWordTokensMax));
      }
      if (std::ranges::find(found, ids) == found.end()) found.push_back(std::move(ids));
    }
  }
  return found;
}

void Truncate(const Truncation& truncation, int room, std::vector<TokenId>& tokens) {
  if (!truncation.wanted) return;
  const auto max = static_cast<size_t>(truncation.tokens_max.value_or(room));
  if (tokens.size() <= max) return;
  if (truncation.keeps_beginning) {
    tokens.resize(max);
  } else {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(max));
  }
}

Parsed<std::string> RenderConversation(const ServedModel& model, const Conversation& conversation) {
  if (model.chat_template == nullptr) {
    return UnsupportedField("messages", "this model has no chat template; use /v1/completions");
  }
  std::string marked, white_space;
  if (conversation.continue_last) marked = MarkEnd(conversation.messages, white_space);
  const text::ChatInput input{.messages_json = marked.empty() ? conversation.messages : marked,
                              .tools_json = conversation.tools,
                              .kwargs_json = conversation.template_kwargs,
                              .add_generation_prompt = conversation.add_generation_prompt,
                              .civil_seconds = CivilSeconds()};
  std::unique_ptr<const text::ChatTemplate> own;
  if (!conversation.chat_template.empty()) {
    auto compiled = model.chat_template->WithSource(conversation.chat_template);
    if (!compiled.ok()) return FromStatus(compiled.status(), "chat_template");
    own = std::move(*compiled);
  }
  Result<std::string> prompt = (own ? *own : *model.chat_template).Render(input);
  if (!prompt.ok()) return FromStatus(prompt.status(), own ? "chat_template" : "messages");
  if (conversation.continue_last && !CutAtMark(*prompt, white_space)) {
    return BadField("continue_final_message",
                    "The chat template does not show the last message as it is.");
  }
  return std::move(prompt).value();
}

Parsed<std::vector<TokenId>> EncodeRendered(const ServedModel& model, const std::string& prompt,
                                            bool any_length) {
  return EncodeText(model, prompt,
                    {.add_special_tokens = false, .parse_special = true, .guarded = true},
                    "messages", any_length);
}

Parsed<std::vector<TokenId>> EncodeConversation(const ServedModel& model,
                                                const Conversation& conversation) {
  Parsed<std::string> prompt = RenderConversation(model, conversation);
  if (auto* error = std::get_if<ApiError>(&prompt)) return std::move(*error);
  return EncodeRendered(model, std::get<std::string>(prompt));
}

}  // namespace millrace::serve
