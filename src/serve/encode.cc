// Encodes prompts and conversations to token ids.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>

#include "base/log.h"
#include "base/rng.h"
#include "serve/http/decorated_reply.h"
#include "serve/http/limits.h"
#include "serve/request/call_ids.h"
#include "serve/request/message_forms.h"
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
  auto& whole = list.back()["content"];
  auto& text = whole.is_array() ? whole.back()["text"] : whole;
  auto content = text.get<std::string>();
  const size_t end = content.find_last_not_of(kWhiteSpace) + 1;
  white_space = content.substr(end);
  content.insert(end, kEndMark);
  text = content;
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

std::string UnknownTemplate(const ServedModel& model, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, source] : model.chat_template->sources()) names.push_back(known);
  return fmt::format("chat_template: the model has no template named \"{}\"; it has {}",
                     Printable(name), fmt::join(names, ", "));
}

// How far a text is tokenized.
text::EncodeBounds BoundsOf(const ServedModel& model, const EncodeUse& use) {
  const auto context = static_cast<size_t>(model.max_model_len);
  text::EncodeBounds bounds{.tokens_max = context};
  if (use.shown) {
    bounds.tokens_max = std::max(context * kShownContextsMax, size_t{kShownTokensMin});
  } else if (use.truncation.wanted) {
    const int kept = use.truncation.tokens_max.value_or(model.max_model_len);
    bounds.tokens_max = std::min(context, static_cast<size_t>(kept));
    bounds.keeps_end = !use.truncation.keeps_beginning;
  }
  bounds.undivided_bytes_max = std::max(context * kUndividedBytesPerToken, kUndividedBytesMin);
  if (use.client != nullptr) {
    bounds.stops = [client = use.client] { return client->disconnected(); };
  }
  return bounds;
}

ApiError NotTokenized(const ServedModel& model, const Status& status, const std::string& param) {
  if (status.code() == StatusCode::kCancelled) {
    return {.status = kStatusClientGone, .message = "The client has left."};
  }
  if (status.code() != StatusCode::kTooLarge) return FromStatus(status, param);
  return ContextTooLongText(model.max_model_len, status.message(), param);
}

}  // namespace

Parsed<std::vector<TokenId>> EncodeText(const ServedModel& model, const std::string& text,
                                        const text::EncodeOptions& options,
                                        const std::string& param, const EncodeUse& use) {
  const int max_model_len = model.max_model_len;
  if (!use.truncation.wanted && !use.shown &&
      text.size() / kBytesPerTokenMax > static_cast<size_t>(max_model_len)) {
    return ContextTooLongText(
        max_model_len,
        fmt::format("your prompt is a text of {} bytes, which is longer", text.size()), param);
  }
  const text::EncodeBounds bounds = BoundsOf(model, use);
  Result<text::EncodedText> encoded = model.tokenizer->EncodeWithin(text, options, bounds);
  if (!encoded.ok()) return NotTokenized(model, encoded.status(), param);
  std::vector<TokenId>& tokens = encoded->tokens;
  for (TokenId token : tokens) {
    if (token < 0 || token >= model.spec.vocab_size) {
      return BadField(param,
                      fmt::format("{} has token {}, which is outside the model's vocabulary of "
                                  "{} tokens: the tokenizer does not match the model",
                                  param, token, model.spec.vocab_size));
    }
  }
  if (!encoded->whole && !use.truncation.wanted) {
    const std::string more =
        use.shown ? fmt::format("; this route shows at most {}", bounds.tokens_max) : std::string();
    return ContextTooLongText(
        max_model_len, fmt::format("your prompt has at least {} tokens{}", tokens.size(), more),
        param);
  }
  if (tokens.empty()) return BadField(param, param + " has no tokens");
  return std::move(tokens);
}

Parsed<std::vector<std::vector<TokenId>>> BadWordTokens(const ServedModel& model,
                                                        const std::vector<std::string>& words) {
  std::vector<std::vector<TokenId>> found;
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size() - 1));
    for (const std::string& text : {bare, " " + bare}) {
      Parsed<std::vector<TokenId>> tokens =
          EncodeText(model, text, {.add_special_tokens = false}, "bad_words", {.shown = true});
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
  const bool own_source = text::IsTemplateSource(conversation.chat_template);
  const text::CallIds ids =
      text::CallIdsOf(own_source ? conversation.chat_template : model.chat_template->tool_source(),
                      model.tool_format);
  std::string messages = WithCallIds(conversation.messages, ids).messages;
  std::string white_space;
  if (conversation.continue_last) messages = MarkEnd(messages, white_space);
  text::ChatInput input{.messages_json = messages,
                        .tools_json = conversation.tools,
                        .kwargs_json = conversation.template_kwargs,
                        .add_generation_prompt = conversation.add_generation_prompt,
                        .civil_seconds = CivilSeconds()};
  std::unique_ptr<const text::ChatTemplate> own;
  if (own_source) {
    auto compiled = model.chat_template->WithSource(conversation.chat_template);
    if (!compiled.ok()) return FromStatus(compiled.status(), "chat_template");
    own = std::move(*compiled);
  } else if (!conversation.chat_template.empty()) {
    input.template_name = conversation.chat_template;
    if (!model.chat_template->Has(conversation.chat_template)) {
      return BadField("chat_template", UnknownTemplate(model, conversation.chat_template));
    }
  } else if (!model.chat_template->HasTemplateFor(input)) {
    return BadField("chat_template",
                    UnknownTemplate(model, text::kDefaultTemplateName) + "; name one of them");
  }
  const text::ChatTemplate& chat_template = own ? *own : *model.chat_template;
  Result<std::string> prompt = chat_template.Render(input);
  if (!prompt.ok()) {
    for (const std::string& form : OtherMessageForms(messages)) {
      text::ChatInput other = input;
      other.messages_json = form;
      Result<std::string> again = chat_template.Render(other);
      if (!again.ok()) continue;
      prompt = std::move(again);
      break;
    }
  }
  if (!prompt.ok()) return TemplateError(prompt.status(), conversation, own != nullptr);
  if (conversation.continue_last && !CutAtMark(*prompt, white_space)) {
    return BadField("continue_final_message",
                    "The chat template does not show the last message as it is.");
  }
  return std::move(prompt).value();
}

Parsed<std::vector<TokenId>> EncodeRendered(const ServedModel& model, const std::string& prompt,
                                            const EncodeUse& use) {
  return EncodeText(model, prompt,
                    {.add_special_tokens = false, .parse_special = true, .guarded = true},
                    "messages", use);
}

Parsed<std::vector<TokenId>> EncodeConversation(const ServedModel& model,
                                                const Conversation& conversation,
                                                const EncodeUse& use) {
  Parsed<std::string> prompt = RenderConversation(model, conversation);
  if (auto* error = std::get_if<ApiError>(&prompt)) return std::move(*error);
  return EncodeRendered(model, std::get<std::string>(prompt), use);
}

}  // namespace millrace::serve
