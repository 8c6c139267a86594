#include "serve/apis/messages_writer.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::serve {
namespace {

Json ToolInput(const std::string& arguments) {
  const Json input = Json::parse(arguments, nullptr, false);
  return input.is_object() ? input : Json::object();
}

Json MessageUsage(const UsageCounts& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"output_tokens", usage.completion_tokens}};
}

// The stop reason, and the stop sequence or null.
std::pair<std::string, Json> StopOf(const std::string& finish_reason, const Json& stop_reason) {
  if (finish_reason == "tool_calls") return {"tool_use", nullptr};
  if (finish_reason == "length") return {"max_tokens", nullptr};
  if (stop_reason.is_string()) return {"stop_sequence", stop_reason};
  return {"end_turn", nullptr};
}

Json MessagesErrorBody(const char* type, const std::string& message) {
  return {{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
}

const char* ErrorType(int status) {
  switch (status) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
  }
}

std::string NamedEvent(const std::string& type, Json data) {
  data["type"] = type;
  return fmt::format("event: {}\ndata: {}\n\n", type, DumpJson(data));
}

}  // namespace

Json MessagesWriter::Error(const ApiError& error) const {
  return MessagesErrorBody(ErrorType(error.status), error.message);
}

std::string MessagesWriter::StreamError(const ApiError& error) {
  return NamedEvent("error", MessagesErrorBody("api_error", error.message));
}

// The message object; `stop` is empty before the answer ends.
Json MessagesWriter::Message(Json content, std::pair<Json, Json> stop,
                             const UsageCounts& usage) const {
  return {{"id", "msg_" + head().id.substr(head().id.find('-') + 1)},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head().model},
          {"content", std::move(content)},
          {"stop_reason", std::move(stop.first)},
          {"stop_sequence", std::move(stop.second)},
          {"usage", MessageUsage(usage)}};
}

Json MessagesWriter::Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) {
  const ChoicePart& part = choices.front();
  Json content = Json::array();
  if (!part.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", part.reasoning}, {"signature", ""}});
  }
  if (!part.text.empty()) content.push_back({{"type", "text"}, {"text", part.text}});
  for (const CallPart& call : part.calls) {
    content.push_back({{"type", "tool_use"},
                       {"id", call.id},
                       {"name", call.name},
                       {"input", ToolInput(call.arguments)}});
  }
  return Message(std::move(content), StopOf(part.finish_reason, part.stop_reason), end.usage);
}

std::string MessagesWriter::Begin(const UsageCounts& usage) {
  if (std::exchange(begun_, true)) return "";
  return NamedEvent("message_start", {{"message", Message(Json::array(), {}, usage)}});
}

std::string MessagesWriter::Open(Block block, Json content) {
  std::string out = Close();
  block_ = block;
  ++blocks_;
  out += NamedEvent("content_block_start",
                    {{"index", index()}, {"content_block", std::move(content)}});
  return out;
}

std::string MessagesWriter::Close() {
  if (std::exchange(block_, Block::kNone) == Block::kNone) return "";
  return NamedEvent("content_block_stop", {{"index", index()}});
}

std::string MessagesWriter::AddText(Block block, const std::string& text) {
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

std::string MessagesWriter::AddCall(const CallPart& call) {
  std::string out;
  if (block_ != Block::kToolUse || call_ != call.index) {
    call_ = call.index;
    out = Open(
        Block::kToolUse,
        {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}});
  }
  if (call.arguments.empty()) return out;
  const Json delta = {{"type", "input_json_delta"}, {"partial_json", call.arguments}};
  out += NamedEvent("content_block_delta", {{"index", index()}, {"delta", delta}});
  return out;
}

std::string MessagesWriter::Part(const ChoicePart& part, const UsageCounts& usage) {
  std::string out = Begin(usage);
  const size_t open = part.ContinuesCall() ? 1 : 0;
  if (open > 0) out += AddCall(part.calls.front());
  out += AddText(Block::kThinking, part.reasoning);
  out += AddText(Block::kText, part.text);
  for (size_t i = open; i < part.calls.size(); ++i) out += AddCall(part.calls[i]);
  if (!part.finish_reason.empty()) {
    finish_reason_ = part.finish_reason;
    stop_reason_ = part.stop_reason;
  }
  return out;
}

std::string MessagesWriter::Done(const AnswerEnd& end) {
  const auto [stop, sequence] = StopOf(finish_reason_, stop_reason_);
  std::string out = Close();
  out +=
      NamedEvent("message_delta", {{"delta", {{"stop_reason", stop}, {"stop_sequence", sequence}}},
                                   {"usage", MessageUsage(end.usage)}});
  out += NamedEvent("message_stop", Json::object());
  return out;
}

std::string MessagesWriter::Ping() const {
  return begun_ ? NamedEvent("ping", Json::object()) : AnswerWriter::Ping();
}

}  // namespace millrace::serve
