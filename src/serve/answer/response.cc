#include "serve/answer/response.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.h"

namespace millrace::serve {
namespace {

constexpr float kLogprobFloor = -9999.0f;  // JSON has no -inf; vLLM's floor

float Finite(float logprob) { return std::max(logprob, kLogprobFloor); }

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

std::string Name(const TokenAlternative& token, bool as_ids) {
  return as_ids ? fmt::format("token_id:{}", token.id) : TokenText(token.bytes);
}

Json ChatToken(const TokenAlternative& token, bool as_ids) {
  Json bytes = Json::array();
  for (unsigned char byte : token.bytes) bytes.push_back(byte);
  return {{"token", Name(token, as_ids)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(bytes)}};
}

Json PromptToken(const TokenAlternative& token) {
  return {{"logprob", Finite(token.logprob)},
          {"rank", token.rank},
          {"decoded_token", TokenText(token.bytes)}};
}

Json CompletionTop(const TokenReport& token, bool as_ids) {
  if (!token.has_logprob) return nullptr;
  Json top = Json::object();
  for (const TokenAlternative& other : token.top) {
    // emplace keeps the first of two equal texts, which is the more likely one.
    top.emplace(Name(other, as_ids), Finite(other.logprob));
  }
  top.emplace(Name(token.chosen, as_ids), Finite(token.chosen.logprob));
  return top;
}

}  // namespace

std::string TokenText(std::string_view bytes) {
  if (text::IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (unsigned char byte : bytes) text += fmt::format("\\x{:02x}", byte);
  return text;
}

int64_t CountCharacters(std::string_view bytes) {
  int64_t count = 0;
  for (unsigned char byte : bytes) count += (byte & 0xC0) != 0x80;
  return count;
}

Json UsageJson(const UsageCounts& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens > 0) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

Json CompletionLogprobs(std::span<const TokenReport> tokens, bool as_ids) {
  Json texts = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenReport& token : tokens) {
    texts.push_back(Name(token.chosen, as_ids));
    logprobs.push_back(token.has_logprob ? Json(Finite(token.chosen.logprob)) : Json());
    tops.push_back(CompletionTop(token, as_ids));
    offsets.push_back(token.text_offset);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ChatLogprobs(std::span<const TokenReport> tokens, bool as_ids) {
  Json content = Json::array();
  for (const TokenReport& token : tokens) {
    Json entry = ChatToken(token.chosen, as_ids);
    Json top = Json::array();
    for (const TokenAlternative& other : token.top) top.push_back(ChatToken(other, as_ids));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json PromptLogprobs(std::span<const TokenReport> tokens) {
  Json list = Json::array();
  for (const TokenReport& token : tokens) {
    if (!token.has_logprob) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = {{std::to_string(token.chosen.id), PromptToken(token.chosen)}};
    for (const TokenAlternative& other : token.top) {
      entry.emplace(std::to_string(other.id), PromptToken(other));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void AddTokenIds(const ChoicePart& part, Json& choice) {
  if (part.token_ids) choice["token_ids"] = *part.token_ids;
}

Json CompletionChoice(const ChoicePart& part) {
  Json choice = {
      {"index", part.index},
      {"text", part.text},
      {"logprobs",
       part.has_logprobs ? CompletionLogprobs(part.logprobs, part.tokens_as_ids) : Json()},
      {"finish_reason", OrNull(part.finish_reason)},
      {"stop_reason", part.stop_reason}};
  if (!part.prompt_logprobs.is_null()) choice["prompt_logprobs"] = part.prompt_logprobs;
  if (part.prompt_token_ids) choice["prompt_token_ids"] = *part.prompt_token_ids;
  AddTokenIds(part, choice);
  return choice;
}

// `deltas`: with the index of each, and without id and name except at its beginning.
Json CallsJson(const std::vector<CallPart>& calls, bool deltas) {
  Json list = Json::array();
  for (const CallPart& call : calls) {
    Json item = {{"function", {{"arguments", call.arguments}}}};
    if (deltas) item["index"] = call.index;
    if (!call.name.empty()) {
      item["id"] = call.id;
      item["type"] = "function";
      item["function"]["name"] = call.name;
    }
    list.push_back(std::move(item));
  }
  return list;
}

Json ChatChoice(const ChoicePart& part) {
  Json message = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
  if (!part.reasoning.empty()) message["reasoning_content"] = part.reasoning;
  if (!part.calls.empty()) {
    if (part.text.empty()) message["content"] = nullptr;
    message["tool_calls"] = CallsJson(part.calls, false);
  }
  Json choice = {
      {"index", part.index},
      {"message", std::move(message)},
      {"logprobs", part.has_logprobs ? ChatLogprobs(part.logprobs, part.tokens_as_ids) : Json()},
      {"finish_reason", OrNull(part.finish_reason)},
      {"stop_reason", part.stop_reason}};
  AddTokenIds(part, choice);
  return choice;
}

Json ChatDelta(const ChoicePart& part) {
  Json delta = Json::object();
  const bool other = !part.reasoning.empty() || !part.calls.empty();
  if (!part.text.empty() || (part.finish_reason.empty() && !other)) delta["content"] = part.text;
  if (!part.reasoning.empty()) delta["reasoning_content"] = part.reasoning;
  if (!part.calls.empty()) delta["tool_calls"] = CallsJson(part.calls, true);
  Json choice = {
      {"index", part.index},
      {"delta", std::move(delta)},
      {"logprobs", part.has_logprobs ? ChatLogprobs(part.logprobs, part.tokens_as_ids) : Json()},
      {"finish_reason", OrNull(part.finish_reason)},
      {"stop_reason", part.stop_reason}};
  AddTokenIds(part, choice);
  return choice;
}

Json ChatRoleDelta(int index) {
  return {{"index", index},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}};
}

Json Envelope(const ResponseHead& head, const std::string& fingerprint, const char* object,
              Json choices) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", OrNull(fingerprint)},
          {"choices", std::move(choices)}};
}

void AppendEvent(const Json& data, std::string& out) {
  out += "data: ";
  out += DumpJson(data);
  out += "\n\n";
}

Json PhasesJson(const RequestPhases& phases) {
  return {{"queue_s", phases.queue.seconds()},
          {"prefill_s", phases.prefill.seconds()},
          {"hold_s", phases.hold.seconds()},
          {"transfer_s", phases.transfer.seconds()},
          {"decode_s", phases.decode.seconds()}};
}

Json MetricsJson(const AnswerTimes& times) {
  Json json = PhasesJson(times.phases);
  json["ttft_s"] = times.ttft.seconds();
  json["e2e_s"] = times.e2e.seconds();
  return json;
}

}  // namespace millrace::serve
