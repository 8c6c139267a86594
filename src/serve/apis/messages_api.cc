#include "serve/apis/messages_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::serve {
namespace {

constexpr std::string_view kEfforts[] = {"low", "medium", "high", "xhigh", "max"};

class MessagesTranslation : public ChatTranslation {
 public:
  MessagesTranslation(const Json& json, std::string_view body, const MessagesContext& context)
      : ChatTranslation(json, body), context_(context) {}

 private:
  void Read() override {
    for (const char* field : {"model", "temperature", "top_p", "top_k", "stream"}) Copy(field);
    Copy("stop_sequences", "stop");
    ReadMaxTokens();
    chat_["messages"] = OrderedJson::array();
    ReadSystem();
    ReadMessages();
    ReadPrefill();
    ReadTools();
    ReadToolChoice();
    ReadThinking();
    ReadOutput();
    // The number of input tokens is in the first event.
    AskForUsage();
    if (chat_.contains("stream_options")) chat_["stream_options"]["continuous_usage_stats"] = true;
    reader_.Ignore("metadata", Json::object());
    reader_.Ignore("service_tier", "auto");
  }

  void ReadMaxTokens() {
    reader_.Int("max_tokens", 1, kMaxTokensMax, max_tokens_);
    if (context_.count_only) return;
    if (!max_tokens_) return reader_.Fail("max_tokens", "max_tokens is required");
    chat_["max_tokens"] = *max_tokens_;
  }

  void ReadSystem() {
    const OrderedJson& system = Take("system");
    if (system.is_null()) return;
    AddMessage("system", {{"role", "system"}, {"content", TextOf("system", system)}});
  }

  void ReadMessages() {
    const OrderedJson& messages = Take("messages");
    if (!messages.is_array() || messages.empty()) {
      return reader_.Fail("messages", "messages must be a list of at least one message, got " +
                                          Describe(Json(messages)));
    }
    for (size_t i = 0; i < messages.size() && !reader_.failed(); ++i) {
      ReadMessage(fmt::format("messages[{}]", i), messages[i], i + 1 == messages.size());
    }
  }

  void ReadMessage(const std::string& where, const OrderedJson& message, bool last) {
    const OrderedJson& role = MemberOf(message, "role");
    const bool assistant = role == OrderedJson("assistant");
    if (role != OrderedJson("user") && !assistant) {
      return Refuse(where + ".role", "must be \"user\" or \"assistant\"", role);
    }
    const OrderedJson& content = MemberOf(message, "content");
    const bool may_be_empty = content.is_string() || (assistant && last);
    if (!content.is_string() && (!content.is_array() || (content.empty() && !may_be_empty))) {
      return Refuse(where + ".content", "must be a string or a list of at least one block",
                    content);
    }
    // The others are what clients repeat of an answer.
    reader_.IgnoreUnknown(where, message,
                          {"role", "content", "id", "type", "model", "stop_reason", "stop_sequence",
                           "stop_details", "usage"});
    OrderedJson made = {{"role", role}, {"content", ""}};
    OrderedJson calls = OrderedJson::array();
    const size_t before = chat_["messages"].size();
    if (content.is_string()) made["content"] = content;
    bool only_text = true;
    for (size_t i = 0; content.is_array() && i < content.size() && !reader_.failed(); ++i) {
      ReadBlock(fmt::format("{}.content[{}]", where, i), content[i], made, calls);
      only_text = only_text && MemberOf(content[i], "type") == OrderedJson("text");
    }
    if (!calls.empty()) made["tool_calls"] = std::move(calls);
    // A message that only had tool results has become messages of its own.
    const bool empty = made["content"] == OrderedJson("") && made.size() == 2;
    if (empty && only_text && !may_be_empty) {
      return reader_.Fail("messages", where + ".content[0].text must not be empty, got \"\"");
    }
    if (!empty || may_be_empty || chat_["messages"].size() == before) {
      AddMessage(where, std::move(made));
    }
  }

  // The members of a message: its text, reasoning_content if it has any, and `calls`.
  void ReadBlock(const std::string& where, const OrderedJson& block, OrderedJson& message,
                 OrderedJson& calls) {
    const OrderedJson& type = MemberOf(block, "type");
    const bool of_assistant = type == OrderedJson("tool_use") || type == OrderedJson("thinking") ||
                              type == OrderedJson("redacted_thinking");
    const char* const role = of_assistant ? "assistant" : "user";
    if ((of_assistant || type == OrderedJson("tool_result")) &&
        message["role"] != OrderedJson(role)) {
      return Refuse(where + ".type", fmt::format("may be in a message of the {} only", role), type);
    }
    if (type == OrderedJson("text")) {
      Append(message["content"], TextOf(where, block));
    } else if (type == OrderedJson("tool_use")) {
      ReadToolUse(where, block, calls);
    } else if (type == OrderedJson("tool_result")) {
      ReadToolResult(where, block);
    } else if (type == OrderedJson("thinking")) {
      ReadEarlierThinking(where, block, message);
    } else if (type != OrderedJson("redacted_thinking")) {  // which holds nothing readable
      reader_.Fail(UnsupportedField(
          "messages", fmt::format("{}.type must be text, tool_use, tool_result, thinking or "
                                  "redacted_thinking, got {}",
                                  where, Describe(Json(type)))));
    }
  }

  static void Append(OrderedJson& text, const std::string& more) {
    const std::string before = text.is_string() ? text.get<std::string>() : "";
    text = before + (before.empty() || more.empty() ? "" : "\n") + more;
  }

  void ReadEarlierThinking(const std::string& where, const OrderedJson& block,
                           OrderedJson& message) {
    const OrderedJson text = block.value("thinking", OrderedJson());
    if (!text.is_string()) return Refuse(where + ".thinking", "must be a string", text);
    reader_.IgnoreUnknown(where, block, {"type", "thinking", "signature", "cache_control"});
    if (text == OrderedJson("")) return;
    Append(message["reasoning_content"], text.get<std::string>());
  }

  void ReadToolUse(const std::string& where, const OrderedJson& block, OrderedJson& calls) {
    const OrderedJson name = block.value("name", OrderedJson());
    const OrderedJson id = block.value("id", OrderedJson(""));
    OrderedJson input = block.value("input", OrderedJson());
    if (!name.is_string()) return Refuse(where + ".name", "must be a string", name);
    if (!id.is_string()) return Refuse(where + ".id", "must be a string", id);
    if (input.is_null()) input = OrderedJson::object();
    if (!input.is_object()) return Refuse(where + ".input", "must be an object", input);
    reader_.IgnoreUnknown(where, block, {"type", "id", "name", "input", "caller", "cache_control"});
    calls.push_back({{"id", id},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", input.dump()}}}});
  }

  void ReadToolResult(const std::string& where, const OrderedJson& block) {
    OrderedJson content = block.value("content", OrderedJson());
    const OrderedJson id = block.value("tool_use_id", OrderedJson(""));
    if (content.is_null()) content = "";
    if (!id.is_string()) return Refuse(where + ".tool_use_id", "must be a string", id);
    reader_.IgnoreUnknown(where, block, {"type", "tool_use_id", "content", "cache_control"});
    AddMessage(
        where,
        {{"role", "tool"}, {"tool_call_id", id}, {"content", TextOf(where + ".content", content)}});
  }

  // Of a string, a text block, or a list of these.
  std::string TextOf(const std::string& where, const OrderedJson& content) {
    if (content.is_string()) return content.get<std::string>();
    if (content.is_object()) {
      const OrderedJson text = content.value("text", OrderedJson());
      if (content.value("type", OrderedJson()) == OrderedJson("text")) {
        if (!text.is_string()) Refuse(where + ".text", "must be a string", text);
        reader_.IgnoreUnknown(where, content, {"type", "text", "cache_control"});
        return text.is_string() ? text.get<std::string>() : "";
      }
    }
    std::string joined;
    if (content.is_array()) {
      for (size_t i = 0; i < content.size(); ++i) {
        if (!joined.empty()) joined += '\n';
        joined += TextOf(fmt::format("{}[{}]", where, i), content[i]);
      }
      return joined;
    }
    reader_.Fail(UnsupportedField(where.substr(0, where.find_first_of(".[")),
                                  fmt::format("{} must be text, or blocks of the type text, got {}",
                                              where, Describe(Json(content)))));
    return "";
  }

  // The answer goes on where the conversation ends, if that is in a text of the assistant.
  void ReadPrefill() {
    if (reader_.failed()) return;
    OrderedJson& messages = chat_["messages"];
    const OrderedJson& last = messages.back();
    if (last["role"] != OrderedJson("assistant") || last.contains("tool_calls")) return;
    const auto& text = last["content"].get_ref<const std::string&>();
    if (text.empty() && last.size() == 2 && messages.size() > 1) {
      messages.erase(messages.size() - 1);
      return;
    }
    const std::string where = names_.Of(fmt::format("messages[{}]", messages.size() - 1));
    if (text.empty()) {
      reader_.Fail("messages", where +
                                   ".content must have a text, because it is the last message "
                                   "and the answer goes on where it ends");
    } else if (std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos) {
      reader_.Fail(
          "messages",
          fmt::format(
              "{}.content must not end with white space, because it is the last "
              "message and the answer goes on where it ends; got {}",
              where, Describe(Json(text.substr(text.size() - std::min<size_t>(text.size(), 32))))));
    }
    chat_["continue_final_message"] = true;
    names_.Add("continue_final_message", where);
  }

  void ReadTools() {
    const OrderedJson& given = Take("tools");
    if (given.is_null()) return;
    if (!given.is_array()) return Refuse("tools", "must be a list", given);
    OrderedJson tools = OrderedJson::array();
    for (size_t i = 0; i < given.size() && !reader_.failed(); ++i) {
      ReadTool(fmt::format("tools[{}]", i), given[i], tools);
    }
    if (!tools.empty()) chat_["tools"] = std::move(tools);
  }

  void ReadTool(const std::string& where, const OrderedJson& tool, OrderedJson& tools) {
    if (!tool.is_object()) return Refuse(where, "must be an object", tool);
    const OrderedJson type = tool.value("type", OrderedJson());
    const bool own = type.is_null() || type == OrderedJson("custom");
    if (!own && !type.is_string()) return Refuse(where + ".type", "must be a string", type);
    // Tools that the API's provider runs, or that its models know by their type.
    if (!own) return reader_.AddIgnored(where + "." + type.get<std::string>());
    if (!tool.contains("input_schema")) {
      return reader_.Fail("tools", where + ".input_schema is required");
    }
    reader_.IgnoreUnknown(
        where, tool, {"type", "name", "description", "input_schema", "strict", "cache_control"});
    const OrderedJson name = tool.value("name", OrderedJson());
    if (!name.is_string()) return Refuse(where + ".name", "must be a string", name);
    const std::string made = fmt::format("tools[{}]", tools.size());
    names_.Add(made, where);
    names_.Add(made + ".function", where);
    names_.Add(made + ".function.parameters", where + ".input_schema");
    OrderedJson function = {{"name", name},
                            {"description", tool.value("description", OrderedJson(""))},
                            {"parameters", tool["input_schema"]}};
    if (tool.contains("strict")) function["strict"] = tool["strict"];
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void ReadToolChoice() {
    const OrderedJson& choice = Take("tool_choice");
    if (choice.is_null()) return;
    const OrderedJson& type = MemberOf(choice, "type");
    if (type == OrderedJson("auto") || type == OrderedJson("none")) {
      chat_["tool_choice"] = type;
    } else if (type == OrderedJson("any")) {
      chat_["tool_choice"] = "required";
    } else if (type == OrderedJson("tool")) {
      const OrderedJson name = choice.value("name", OrderedJson());
      if (!name.is_string()) return Refuse("tool_choice.name", "must be a string", name);
      chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
    } else {
      return Refuse("tool_choice.type", "must be auto, any, tool or none",
                    choice.is_object() ? type : choice);
    }
    reader_.IgnoreUnknown("tool_choice", choice, {"type", "name", "disable_parallel_tool_use"});
    const OrderedJson one = choice.value("disable_parallel_tool_use", OrderedJson(false));
    if (!one.is_null() && !one.is_boolean()) {
      return Refuse("tool_choice.disable_parallel_tool_use", "must be true or false", one);
    }
    if (one == OrderedJson(true)) chat_["parallel_tool_calls"] = false;
  }

  void ReadThinking() {
    const OrderedJson& thinking = Take("thinking");
    if (thinking.is_null()) return;
    if (!thinking.is_object()) return Refuse("thinking", "must be an object", thinking);
    const OrderedJson type = thinking.value("type", OrderedJson());
    const bool enabled = type == OrderedJson("enabled");
    const bool on = enabled || type == OrderedJson("adaptive");
    if (!on && type != OrderedJson("disabled")) {
      return Refuse("thinking.type", "must be enabled, disabled or adaptive", type);
    }
    reader_.IgnoreUnknown("thinking", thinking, {"type", "budget_tokens", "display"});
    // By the two names that templates give it.
    chat_["chat_template_kwargs"] = {{"enable_thinking", on}, {"thinking", on}};
    names_.Add("chat_template_kwargs", "thinking");
    ReadThinkingBudget(thinking.value("budget_tokens", OrderedJson()), enabled);
    ReadThinkingDisplay(thinking.value("display", OrderedJson()));
    if (on && !context_.reasons) reader_.AddIgnored("thinking");
  }

  void ReadThinkingBudget(const OrderedJson& budget, bool enabled) {
    if (budget.is_null()) return;
    if (!enabled) return reader_.AddIgnored("thinking.budget_tokens");
    const IntegerOrError read = ReadInteger(Json(budget), 1, kMaxTokensMax);
    if (!read.error.empty()) {
      return reader_.Fail("thinking", "thinking.budget_tokens " + read.error);
    }
    if (max_tokens_ && read.value >= *max_tokens_) {
      return reader_.Fail("thinking",
                          fmt::format("thinking.budget_tokens must be less than max_tokens ({}), "
                                      "got {}",
                                      *max_tokens_, read.value));
    }
    if (context_.reasons) chat_["thinking_token_budget"] = read.value;
    names_.Add("thinking_token_budget", "thinking.budget_tokens");
  }

  void ReadThinkingDisplay(const OrderedJson& display) {
    if (display.is_null() || display == OrderedJson("summarized")) return;
    if (display != OrderedJson("omitted")) {
      return Refuse("thinking.display", "must be summarized or omitted", display);
    }
    chat_["include_reasoning"] = false;
  }

  // output_config, and output_format, its older form for a format alone.
  void ReadOutput() {
    const OrderedJson& config = Take("output_config");
    const OrderedJson& older = Take("output_format");
    if (!config.is_null() && !config.is_object()) {
      return Refuse("output_config", "must be an object", config);
    }
    reader_.IgnoreUnknown("output_config", config, {"format", "effort"});
    ReadEffort(MemberOf(config, "effort"));
    const OrderedJson& format = MemberOf(config, "format");
    if (!format.is_null()) {
      ReadFormat("output_config.format", format);
      if (!older.is_null()) reader_.AddIgnored("output_format");
    } else if (!older.is_null()) {
      ReadFormat("output_format", older);
    }
  }

  void ReadEffort(const OrderedJson& effort) {
    if (effort.is_null()) return;
    const auto is = [&](std::string_view name) { return effort == OrderedJson(name); };
    if (std::ranges::none_of(kEfforts, is)) {
      return Refuse("output_config.effort",
                    fmt::format("must be one of {}", fmt::join(kEfforts, ", ")), effort);
    }
    chat_["reasoning_effort"] = effort;
    names_.Add("reasoning_effort", "output_config.effort");
    if (!context_.reasons) reader_.AddIgnored("output_config.effort");
  }

  void ReadFormat(const std::string& where, const OrderedJson& format) {
    if (!format.is_object()) return Refuse(where, "must be an object", format);
    const OrderedJson type = format.value("type", OrderedJson());
    if (type != OrderedJson("json_schema")) {
      return Refuse(where + ".type", "must be json_schema", type);
    }
    const OrderedJson schema = format.value("schema", OrderedJson());
    if (schema.is_null()) return reader_.Fail("output_config", where + ".schema is required");
    reader_.IgnoreUnknown(where, format, {"type", "schema", "name"});
    chat_["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "output"}, {"schema", schema}}}};
    names_.Add("response_format", where);
    names_.Add("response_format.json_schema", where);
  }

  // `where` is the path of `value`.
  void Refuse(const std::string& where, const std::string& must, const OrderedJson& value) {
    reader_.Fail(where.substr(0, where.find_first_of(".[")),
                 fmt::format("{} {}, got {}", where, must, Describe(Json(value))));
  }

  const MessagesContext context_;
  std::optional<int> max_tokens_;
};

}  // namespace

Parsed<TranslatedRequest> ChatOfMessages(std::string_view body, const MessagesContext& context) {
  return TranslateToChat<MessagesTranslation>(body, context);
}

}  // namespace millrace::serve
