#include "serve/apis/messages_reply.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::serve {
namespace {

Json ToolInput(const std::string& arguments) {
  const Json input = Json::parse(arguments, nullptr, false);
  return input.is_object() ? input : Json::object();
}

Json MessageUsage(const Json& usage) {
  const Json details = usage.value("prompt_tokens_details", Json::object());
  const auto cached = details.value("cached_tokens", int64_t{0});
  return {{"input_tokens", usage.value("prompt_tokens", int64_t{0}) - cached},
          {"cache_read_input_tokens", cached},
          {"cache_creation_input_tokens", 0},
          {"output_tokens", usage.value("completion_tokens", int64_t{0})}};
}

// The stop reason, and the stop sequence or null.
std::pair<std::string, Json> StopOf(const Json& finish_reason, const Json& stop_reason) {
  if (finish_reason == Json("tool_calls")) return {"tool_use", nullptr};
  if (finish_reason == Json("length")) return {"max_tokens", nullptr};
  if (stop_reason.is_string()) return {"stop_sequence", stop_reason};
  return {"end_turn", nullptr};
}

std::string MessageId(const Json& answer) {
  const std::string id = answer.value("id", "");
  return "msg_" + id.substr(id.find('-') + 1);
}

std::string NamedEvent(const std::string& type, Json data) {
  data["type"] = type;
  return fmt::format("event: {}\ndata: {}\n\n", type, DumpJson(data));
}

}  // namespace

Json MessagesError(const Json& error, int status) {
  const char* type = "api_error";
  switch (status) {
    case 400: type = "invalid_request_error"; break;
    case 401: type = "authentication_error"; break;
    case 404: type = "not_found_error"; break;
    case 413: type = "request_too_large"; break;
    case 429: type = "rate_limit_error"; break;
    case 503: type = "overloaded_error"; break;
    default: break;
  }
  const Json message = error.is_object() ? error.value("message", Json("")) : Json("");
  return {{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
}

Json MessagesReply::Whole(const Json& answer) {
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  Json content = Json::array();
  if (const std::string thinking = message.value("reasoning_content", ""); !thinking.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", thinking}, {"signature", ""}});
  }
  if (message["content"].is_string() && message["content"] != Json("")) {
    content.push_back({{"type", "text"}, {"text", message["content"]}});
  }
  for (const Json& call : message.value("tool_calls", Json::array())) {
    const Json& function = call["function"];
    content.push_back({{"type", "tool_use"},
                       {"id", call["id"]},
                       {"name", function["name"]},
                       {"input", ToolInput(function["arguments"].get<std::string>())}});
  }
  const auto [stop, sequence] = StopOf(choice["finish_reason"], choice["stop_reason"]);
  return {{"id", MessageId(answer)},       {"type", "message"},
          {"role", "assistant"},           {"model", answer["model"]},
          {"content", std::move(content)}, {"stop_reason", stop},
          {"stop_sequence", sequence},     {"usage", MessageUsage(answer["usage"])}};
}

std::string MessagesReply::Begin(const Json& chunk) {
  if (std::exchange(begun_, true)) return "";
  const Json message = {{"id", MessageId(chunk)},   {"type", "message"},
                        {"role", "assistant"},      {"model", chunk["model"]},
                        {"content", Json::array()}, {"stop_reason", nullptr},
                        {"stop_sequence", nullptr}, {"usage", MessageUsage(usage_)}};
  return NamedEvent("message_start", {{"message", message}});
}

std::string MessagesReply::Open(Block block, Json content) {
  std::string out = Close();
  block_ = block;
  ++blocks_;
  out += NamedEvent("content_block_start",
                    {{"index", index()}, {"content_block", std::move(content)}});
  return out;
}

std::string MessagesReply::Close() {
  if (std::exchange(block_, Block::kNone) == Block::kNone) return "";
  return NamedEvent("content_block_stop", {{"index", index()}});
}

std::string MessagesReply::AddText(Block block, const std::string& text) {
  if (text.empty()) return "";
  const bool thinking = block == Block::kThinking;
  const char* field = thinking ? "thinking" : "text";
  std::string out;
  if (block_ != block) {
    Json content = {{"type", field}, {field, ""}};
    if (thinking) content["signature"] = "";
    out = Open(block, std::move(content));
  }
  const Json delta = {{"type", thinking ? "thinking_delta" : "text_delta"}, {field, text}};
  out += NamedEvent("content_block_delta", {{"index", index()}, {"delta", delta}});
  return out;
}

std::string MessagesReply::AddCall(const Json& call) {
  std::string out;
  const int call_index = call["index"].get<int>();
  if (block_ != Block::kToolUse || call_ != call_index) {
    call_ = call_index;
    out = Open(Block::kToolUse, {{"type", "tool_use"},
                                 {"id", call.value("id", "")},
                                 {"name", call["function"].value("name", "")},
                                 {"input", Json::object()}});
  }
  const std::string arguments = call["function"].value("arguments", "");
  if (arguments.empty()) return out;
  const Json delta = {{"type", "input_json_delta"}, {"partial_json", arguments}};
  out += NamedEvent("content_block_delta", {{"index", index()}, {"delta", delta}});
  return out;
}

std::string MessagesReply::Chunk(const Json& chunk) {
  if (chunk.contains("usage") && !chunk["usage"].is_null()) usage_ = chunk["usage"];
  std::string out = Begin(chunk);
  if (chunk["choices"].empty()) return out;
  const Json& choice = chunk["choices"][0];
  const Json& delta = choice["delta"];
  out += AddText(Block::kThinking, delta.value("reasoning_content", ""));
  const Json content = delta.value("content", Json());
  if (content.is_string()) out += AddText(Block::kText, content.get<std::string>());
  for (const Json& call : delta.value("tool_calls", Json::array())) out += AddCall(call);
  if (!choice["finish_reason"].is_null()) {
    finish_reason_ = choice["finish_reason"];
    stop_reason_ = choice.value("stop_reason", Json());
  }
  return out;
}

std::string MessagesReply::Done() {
  const auto [stop, sequence] = StopOf(finish_reason_, stop_reason_);
  std::string out = Close();
  out +=
      NamedEvent("message_delta", {{"delta", {{"stop_reason", stop}, {"stop_sequence", sequence}}},
                                   {"usage", MessageUsage(usage_)}});
  out += NamedEvent("message_stop", Json::object());
  return out;
}

std::string MessagesReply::Ping() const {
  return begun_ ? NamedEvent("ping", Json::object()) : TranslatedReply::Ping();
}

std::string MessagesReply::StreamError(const Json& error) {
  return NamedEvent("error", MessagesError(error, 500));
}

}  // namespace millrace::serve
