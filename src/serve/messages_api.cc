#include "serve/messages_api.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace millrace::serve {
namespace {

class MessagesTranslation : public ChatTranslation {
 public:
  // `count_only`: the tokens are only counted.
  MessagesTranslation(const Json& json, std::string_view body, bool count_only)
      : ChatTranslation(json, body), count_only_(count_only) {}

 private:
  void Read() override {
    for (const char* field : {"model", "temperature", "top_p", "top_k", "stream"}) Copy(field);
    Copy("stop_sequences", "stop");
    ReadMaxTokens();
    chat_["messages"] = OrderedJson::array();
    ReadSystem();
    ReadMessages();
    ReadTools();
    ReadToolChoice();
    ReadThinking();
    AskForUsage();
    reader_.Ignore("metadata", Json::object());
    reader_.Ignore("service_tier", "auto");
  }

  void ReadMaxTokens() {
    std::optional<int> max_tokens;
    reader_.Int("max_tokens", 1, kMaxTokensMax, max_tokens);
    if (count_only_) return;
    if (!max_tokens) return reader_.Fail("max_tokens", "max_tokens is required");
    chat_["max_tokens"] = *max_tokens;
  }

  void ReadSystem() {
    const OrderedJson system = Take("system");
    if (system.is_null()) return;
    chat_["messages"].push_back({{"role", "system"}, {"content", TextOf("system", system)}});
  }

  void ReadMessages() {
    const OrderedJson messages = Take("messages");
    if (!messages.is_array() || messages.empty()) {
      return reader_.Fail("messages", "messages must be a list of at least one message");
    }
    for (size_t i = 0; i < messages.size() && !reader_.failed(); ++i) {
      ReadMessage(fmt::format("messages[{}]", i), messages[i]);
    }
  }

  void ReadMessage(const std::string& where, const OrderedJson& message) {
    const OrderedJson role = MemberOf(message, "role");
    if (role != OrderedJson("user") && role != OrderedJson("assistant")) {
      return reader_.Fail("messages", where + ".role must be \"user\" or \"assistant\"");
    }
    const OrderedJson content = message.value("content", OrderedJson());
    if (!content.is_string() && !content.is_array()) {
      return reader_.Fail("messages", where + ".content must be a string or a list of blocks");
    }
    OrderedJson made = {{"role", role}, {"content", ""}};
    OrderedJson calls = OrderedJson::array();
    if (content.is_string()) made["content"] = content;
    for (size_t i = 0; content.is_array() && i < content.size() && !reader_.failed(); ++i) {
      ReadBlock(fmt::format("{}.content[{}]", where, i), content[i], made, calls);
    }
    if (!calls.empty()) made["tool_calls"] = std::move(calls);
    // A message that only had tool results has become messages of its own.
    const bool empty = made["content"] == OrderedJson("") && !made.contains("tool_calls");
    if (!empty || content.is_string() || content.empty()) {
      chat_["messages"].push_back(std::move(made));
    }
  }

  void ReadBlock(const std::string& where, const OrderedJson& block, OrderedJson& message,
                 OrderedJson& calls) {
    const OrderedJson type = MemberOf(block, "type");
    if (type == OrderedJson("text")) {
      const std::string before = message["content"].get<std::string>();
      message["content"] = before + (before.empty() ? "" : "\n") + TextOf(where, block);
    } else if (type == OrderedJson("tool_use")) {
      const OrderedJson input = block.value("input", OrderedJson::object());
      calls.push_back(
          {{"id", block.value("id", OrderedJson(""))},
           {"type", "function"},
           {"function",
            {{"name", block.value("name", OrderedJson(""))}, {"arguments", input.dump()}}}});
    } else if (type == OrderedJson("tool_result")) {
      const OrderedJson content = block.value("content", OrderedJson(""));
      chat_["messages"].push_back({{"role", "tool"},
                                   {"tool_call_id", block.value("tool_use_id", OrderedJson(""))},
                                   {"content", TextOf(where + ".content", content)}});
    } else if (type != OrderedJson("thinking") && type != OrderedJson("redacted_thinking")) {
      reader_.Fail(UnsupportedField(
          "messages", where + ": only blocks of the types text, tool_use, tool_result and thinking "
                              "are supported"));
    }
  }

  // Of a string, a text block, or a list of these.
  std::string TextOf(const std::string& where, const OrderedJson& content) {
    if (content.is_string()) return content.get<std::string>();
    if (content.is_object()) {
      const OrderedJson text = content.value("text", OrderedJson());
      if (content.value("type", OrderedJson()) == OrderedJson("text") && text.is_string()) {
        return text.get<std::string>();
      }
    }
    std::string joined;
    if (content.is_array()) {
      for (const OrderedJson& part : content) {
        if (!joined.empty()) joined += '\n';
        joined += TextOf(where, part);
      }
      return joined;
    }
    reader_.Fail(UnsupportedField(where.substr(0, where.find_first_of(".[")),
                                  where + " must be text, or blocks of the type text"));
    return "";
  }

  void ReadTools() {
    const OrderedJson given = Take("tools");
    if (given.is_null()) return;
    if (!given.is_array()) return reader_.Fail("tools", "tools must be a list");
    OrderedJson tools = OrderedJson::array();
    for (const OrderedJson& tool : given) {
      if (!tool.is_object() || !tool.contains("input_schema")) {
        return reader_.Fail(UnsupportedField(
            "tools", fmt::format("tools[{}] must have a name and an input_schema; tools of the "
                                 "provider are not available",
                                 tools.size())));
      }
      OrderedJson function = {{"name", tool.value("name", OrderedJson())},
                              {"description", tool.value("description", OrderedJson(""))},
                              {"parameters", tool["input_schema"]}};
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    chat_["tools"] = std::move(tools);
  }

  void ReadToolChoice() {
    const OrderedJson choice = Take("tool_choice");
    if (choice.is_null()) return;
    const OrderedJson type = MemberOf(choice, "type");
    if (type == OrderedJson("auto") || type == OrderedJson("none")) {
      chat_["tool_choice"] = type;
    } else if (type == OrderedJson("any")) {
      chat_["tool_choice"] = "required";
    } else if (type == OrderedJson("tool")) {
      chat_["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", choice.value("name", OrderedJson())}}}};
    } else {
      return reader_.Fail("tool_choice", "tool_choice.type must be auto, any, tool or none");
    }
    if (choice.value("disable_parallel_tool_use", OrderedJson()) == OrderedJson(true)) {
      chat_["parallel_tool_calls"] = false;
    }
  }

  void ReadThinking() {
    const OrderedJson thinking = Take("thinking");
    if (thinking.is_null()) return;
    if (!thinking.is_object()) return reader_.Fail("thinking", "thinking must be an object");
    const bool enabled = thinking.value("type", OrderedJson()) == OrderedJson("enabled");
    chat_["chat_template_kwargs"] = {{"enable_thinking", enabled}};
    if (enabled && thinking.contains("budget_tokens")) {
      chat_["thinking_token_budget"] = thinking["budget_tokens"];
    }
  }

  const bool count_only_;
};

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

Parsed<TranslatedRequest> ChatOfMessages(std::string_view body, bool count_only) {
  return TranslateToChat<MessagesTranslation>(body, count_only);
}

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
                        {"stop_sequence", nullptr}, {"usage", MessageUsage(Json::object())}};
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
  std::string out = Begin(chunk);
  if (chunk.contains("usage") && !chunk["usage"].is_null()) usage_ = chunk["usage"];
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
  out += NamedEvent("message_delta",
                    {{"delta", {{"stop_reason", stop}, {"stop_sequence", sequence}}},
                     {"usage", MessageUsage(usage_.is_object() ? usage_ : Json::object())}});
  out += NamedEvent("message_stop", Json::object());
  return out;
}

std::string MessagesReply::StreamError(const Json& error) {
  return NamedEvent("error", MessagesError(error, 500));
}

}  // namespace millrace::serve
