#include "serve/apis/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "serve/http/limits.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kLogprobsIncluded = "message.output_text.logprobs";

// The items of a request's input, each with a type and an id. `id` is the response's.
OrderedJson InputItems(OrderedJson input, const std::string& id) {
  if (input.is_string()) {
    input = OrderedJson::array({{{"type", "message"}, {"role", "user"}, {"content", input}}});
  }
  for (size_t i = 0; i < input.size(); ++i) {
    OrderedJson& item = input[i];
    if (!item.contains("type")) item["type"] = "message";
    if (!item.contains("id")) item["id"] = fmt::format("{}_input_{}", id, i);
    // Clients read a message as a list of parts.
    if (item["type"] == "message" && item.contains("content") && item["content"].is_string()) {
      const char* const type = item.value("role", "") == "assistant" ? "output_text" : "input_text";
      const OrderedJson part = {{"type", type}, {"text", item["content"]}};
      item["content"] = OrderedJson::array({part});
    }
  }
  return input;
}

Json EchoedInResponses(const Json& body) {
  Json echoed = {{"instructions", nullptr},
                 {"max_output_tokens", nullptr},
                 {"metadata", Json::object()},
                 {"parallel_tool_calls", true},
                 {"temperature", nullptr},
                 {"text", {{"format", {{"type", "text"}}}}},
                 {"tool_choice", "auto"},
                 {"tools", Json::array()},
                 {"top_p", nullptr},
                 {"truncation", "disabled"},
                 {"reasoning", nullptr},
                 {"user", nullptr},
                 {"background", false},
                 {"previous_response_id", nullptr},
                 {"store", true}};
  for (auto& [name, value] : echoed.items()) {
    if (body.contains(name) && !body[name].is_null()) value = body[name];
  }
  return echoed;
}

class ResponsesTranslation : public ChatTranslation {
 public:
  ResponsesTranslation(const Json& json, std::string_view body, const ResponsesContext& context)
      : ChatTranslation(json, body), context_(context) {}

  // REQUIRES: Run has found no error.
  OrderedJson TakeInput() { return InputItems(std::move(body_["input"]), context_.id); }

 private:
  void Read() override {
    for (const char* field : {"model", "temperature", "top_p", "stream", "parallel_tool_calls",
                              "seed", "user", "service_tier", "prompt_cache_key"}) {
      Copy(field);
    }
    ReadState();
    ReadMaxTokens();
    chat_["messages"] = OrderedJson::array();
    ReadInput();
    ReadTools();
    ReadToolChoice();
    ReadText();
    ReadReasoning();
    ReadLogprobs();
    ReadStreamOptions();
    AskForUsage();
    reader_.Ignore("truncation", "disabled");
  }

  // ReadResponsesOptions has read their values.
  void ReadState() {
    for (const char* field : {"previous_response_id", "store", "background"}) reader_.Find(field);
    reader_.Unsupported("conversation", "continue with previous_response_id");
    reader_.Unsupported("prompt", "send instructions and input");
    reader_.Object("metadata", [](const Json&) {});  // the response repeats it
    chat_["request_id"] = context_.id.substr(kResponseIdBegin.size());
    if (context_.seed && !chat_.contains("seed")) chat_["seed"] = *context_.seed;
  }

  void ReadMaxTokens() {
    std::optional<int> max_tokens;
    reader_.Int("max_output_tokens", 1, kMaxTokensMax, max_tokens);
    if (max_tokens) chat_["max_tokens"] = *max_tokens;
    names_.Add("max_tokens", "max_output_tokens");
  }

  void ReadInput() {
    std::string instructions;
    reader_.String("instructions", kAnyTextBytes, instructions);
    names_.Add("messages", "input");
    if (!instructions.empty()) Add("instructions", "system", instructions);
    if (context_.earlier != nullptr) ReadItems("previous_response_id", *context_.earlier);
    const OrderedJson& input = Take("input");
    if (input.is_string()) {
      AddReasoningAlone();
      return Add("input", "user", input.get<std::string>());
    }
    if (!input.is_array() || input.empty()) {
      return Refuse("input", "must be a string or a list of at least one item", input);
    }
    ReadItems("input", input);
    AddReasoningAlone();
  }

  void ReadItems(const char* field, const OrderedJson& items) {
    for (size_t i = 0; i < items.size() && !reader_.failed(); ++i) {
      ReadItem(fmt::format("{}[{}]", field, i), items[i]);
    }
  }

  void Add(const std::string& where, const OrderedJson& role, std::string content) {
    AddMessage(where, {{"role", role}, {"content", std::move(content)}});
  }

  // Reasoning belongs to the assistant's turn that follows it.
  void GiveReasoning() {
    if (reasoning_.empty()) return;
    OrderedJson& message = chat_["messages"].back();
    if (message.contains("reasoning_content")) {
      reasoning_ = message["reasoning_content"].get<std::string>() + "\n" + reasoning_;
    }
    message["reasoning_content"] = std::exchange(reasoning_, {});
  }

  // No text or call of its turn follows.
  void AddReasoningAlone() {
    if (reasoning_.empty()) return;
    Add(reasoning_from_, "assistant", "");
    GiveReasoning();
  }

  void ReadItem(const std::string& where, const OrderedJson& item) {
    if (!item.is_object()) return Refuse(where, "must be an object", item);
    const OrderedJson& type = MemberOf(item, "type");
    if (type.is_null() || type == OrderedJson("message")) {
      ReadMessage(where, item);
    } else if (type == OrderedJson("function_call")) {
      ReadCall(where, item);
    } else if (type == OrderedJson("function_call_output")) {
      AddReasoningAlone();
      reader_.IgnoreUnknown(where, item,
                            {"type", "id", "status", "call_id", "output", "created_by"});
      AddMessage(where, {{"role", "tool"},
                         {"tool_call_id", TextMember(where, item, "call_id")},
                         {"content", TextOf(where + ".output", MemberOf(item, "output"))}});
    } else if (type == OrderedJson("reasoning")) {
      ReadEarlierReasoning(where, item);
    } else {
      reader_.Fail(UnsupportedField(
          "input", fmt::format("{}.type must be message, function_call, function_call_output or "
                               "reasoning, got {}",
                               where, Describe(Json(type)))));
    }
  }

  // A member that must be a text.
  OrderedJson TextMember(const std::string& where, const OrderedJson& object, const char* name) {
    const OrderedJson& value = MemberOf(object, name);
    if (!value.is_string()) Refuse(where + "." + name, "must be a string", value);
    return value;
  }

  void ReadMessage(const std::string& where, const OrderedJson& item) {
    const OrderedJson& role = MemberOf(item, "role");
    if (!role.is_string()) return Refuse(where + ".role", "must be a string", role);
    reader_.IgnoreUnknown(where, item, {"type", "id", "status", "role", "content", "phase"});
    if (role != OrderedJson("assistant")) AddReasoningAlone();
    Add(where, role, TextOf(where + ".content", MemberOf(item, "content")));
    if (role == OrderedJson("assistant")) GiveReasoning();
  }

  void ReadCall(const std::string& where, const OrderedJson& item) {
    reader_.IgnoreUnknown(where, item,
                          {"type", "id", "status", "call_id", "name", "arguments", "created_by"});
    const OrderedJson call = {{"id", TextMember(where, item, "call_id")},
                              {"type", "function"},
                              {"function",
                               {{"name", TextMember(where, item, "name")},
                                {"arguments", TextMember(where, item, "arguments")}}}};
    // Calls of one turn belong to one message.
    OrderedJson& messages = chat_["messages"];
    if (messages.empty() || messages.back()["role"] != OrderedJson("assistant")) {
      Add(where, "assistant", "");
    }
    messages.back()["tool_calls"].push_back(call);
    GiveReasoning();
  }

  // Its text, or a summary if it has none. What is encrypted cannot be read.
  void ReadEarlierReasoning(const std::string& where, const OrderedJson& item) {
    reader_.IgnoreUnknown(where, item, {"type", "id", "status", "summary", "content"});
    std::string text = PartsOf(where + ".content", MemberOf(item, "content"));
    if (text.empty()) text = PartsOf(where + ".summary", MemberOf(item, "summary"));
    if (text.empty()) return;
    reasoning_ += (reasoning_.empty() ? "" : "\n") + text;
    reasoning_from_ = where;
  }

  std::string PartsOf(const std::string& where, const OrderedJson& parts) {
    return parts.is_null() ? "" : TextOf(where, parts);
  }

  // Of a string, or a list of parts with text.
  std::string TextOf(const std::string& where, const OrderedJson& content) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) {
      Refuse(where, "must be a string or a list of parts", content);
      return "";
    }
    std::string joined;
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string part = fmt::format("{}[{}]", where, i);
      OrderedJson text = MemberOf(content[i], "text");
      if (MemberOf(content[i], "type") == OrderedJson("refusal")) {
        text = MemberOf(content[i], "refusal");
      }
      if (!text.is_string()) {
        reader_.Fail(UnsupportedField("input", fmt::format("{} must be a part with text, got {}",
                                                           part, Describe(Json(content[i])))));
        return "";
      }
      reader_.IgnoreUnknown(part, content[i],
                            {"type", "text", "refusal", "annotations", "logprobs"});
      if (!joined.empty()) joined += '\n';
      joined += text.get<std::string>();
    }
    return joined;
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
    const OrderedJson& type = MemberOf(tool, "type");
    if (!type.is_string()) return Refuse(where + ".type", "must be a string", type);
    if (type != OrderedJson("function")) {  // of the API's provider
      return reader_.AddIgnored(where + "." + type.get<std::string>());
    }
    reader_.IgnoreUnknown(where, tool, {"type", "name", "description", "parameters", "strict"});
    const std::string made = fmt::format("tools[{}]", tools.size());
    names_.Add(made, where);
    names_.Add(made + ".function", where);
    TextMember(where, tool, "name");
    OrderedJson function = OrderedJson::object();
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      if (tool.contains(name)) function[name] = tool[name];
    }
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void ReadToolChoice() {
    const OrderedJson& choice = Take("tool_choice");
    if (!choice.is_object()) {
      if (!choice.is_null()) chat_["tool_choice"] = choice;
      return;
    }
    const OrderedJson& type = MemberOf(choice, "type");
    if (!type.is_string()) return Refuse("tool_choice.type", "must be a string", type);
    if (type == OrderedJson("allowed_tools")) return ReadAllowedTools(choice);
    // Of a tool that is ignored.
    if (type != OrderedJson("function")) return reader_.AddIgnored("tool_choice");
    const OrderedJson& name = MemberOf(choice, "name");
    if (!name.is_string()) return Refuse("tool_choice.name", "must be a string", name);
    reader_.IgnoreUnknown("tool_choice", choice, {"type", "name"});
    names_.Add("tool_choice.function", "tool_choice");
    chat_["tool_choice"] = {{"type", type}, {"function", {{"name", name}}}};
  }

  bool HasTool(const OrderedJson& name) const {
    return chat_.contains("tools") &&
           std::ranges::any_of(chat_["tools"], [&](const OrderedJson& tool) {
             return MemberOf(tool["function"], "name") == name;
           });
  }

  // Some of the tools may be called ("auto"), or must be ("required").
  void ReadAllowedTools(const OrderedJson& choice) {
    const OrderedJson mode = choice.value("mode", OrderedJson("auto"));
    const OrderedJson& allowed = MemberOf(choice, "tools");
    if (mode != OrderedJson("auto") && mode != OrderedJson("required")) {
      return Refuse("tool_choice.mode", "must be auto or required", mode);
    }
    if (!allowed.is_array()) return Refuse("tool_choice.tools", "must be a list", allowed);
    reader_.IgnoreUnknown("tool_choice", choice, {"type", "mode", "tools"});
    for (size_t i = 0; i < allowed.size(); ++i) {
      const OrderedJson& name = MemberOf(allowed[i], "name");
      if (MemberOf(allowed[i], "type") != OrderedJson("function") || HasTool(name)) continue;
      return Refuse(fmt::format("tool_choice.tools[{}].name", i), "must be one of the tools", name);
    }
    chat_["tool_choice"] = mode;
    if (!chat_.contains("tools")) return;
    const auto is_allowed = [&](const OrderedJson& tool) {
      return std::ranges::any_of(allowed, [&](const OrderedJson& one) {
        return MemberOf(one, "name") == MemberOf(tool["function"], "name");
      });
    };
    OrderedJson kept = OrderedJson::array();
    for (const OrderedJson& tool : chat_["tools"]) {
      if (is_allowed(tool)) kept.push_back(tool);
    }
    chat_["tools"] = std::move(kept);
  }

  void ReadText() {
    const OrderedJson& text = Take("text");
    names_.Add("response_format", "text.format");
    names_.Add("response_format.json_schema", "text.format");
    if (text.is_null()) return;
    if (!text.is_object()) return Refuse("text", "must be an object", text);
    reader_.IgnoreUnknown("text", text, {"format", "verbosity"});
    const OrderedJson& verbosity = MemberOf(text, "verbosity");
    if (!verbosity.is_null() && verbosity != OrderedJson("medium")) {
      reader_.AddIgnored("text.verbosity");
    }
    OrderedJson format = MemberOf(text, "format");
    if (format.is_null()) return;
    if (MemberOf(format, "type") != OrderedJson("json_schema")) {
      chat_["response_format"] = std::move(format);
      return;
    }
    const OrderedJson& schema = MemberOf(format, "schema");
    if (!schema.is_object() && !schema.is_boolean()) {
      return Refuse("text.format.schema", "must be a JSON schema", schema);
    }
    format.erase("type");
    chat_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(format)}};
  }

  void ReadReasoning() {
    const OrderedJson& reasoning = Take("reasoning");
    if (reasoning.is_null()) return;
    if (!reasoning.is_object()) return Refuse("reasoning", "must be an object", reasoning);
    reader_.IgnoreUnknown("reasoning", reasoning, {"effort"});
    const OrderedJson& effort = MemberOf(reasoning, "effort");
    names_.Add("reasoning_effort", "reasoning.effort");
    if (!effort.is_null()) chat_["reasoning_effort"] = effort;
  }

  // Of the tokens of the text, if they are included.
  void ReadLogprobs() {
    std::optional<int> top;
    reader_.Int("top_logprobs", 0, kTopLogprobsMax, top);
    const OrderedJson& include = Take("include");
    if (!include.is_null() && !include.is_array())
      return Refuse("include", "must be a list", include);
    bool included = false;
    for (size_t i = 0; i < include.size(); ++i) {
      if (!include[i].is_string()) {
        return Refuse(fmt::format("include[{}]", i), "must be a string", include[i]);
      }
      const auto& name = include[i].get_ref<const std::string&>();
      if (name != kLogprobsIncluded) reader_.AddIgnored("include." + name);
      included = included || name == kLogprobsIncluded;
    }
    if (included) {
      chat_["logprobs"] = true;
      chat_["top_logprobs"] = top.value_or(0);
    } else if (top.value_or(0) > 0) {
      reader_.AddIgnored("top_logprobs");
    }
    names_.Add("logprobs", "include");
  }

  void ReadStreamOptions() {
    const OrderedJson& options = Take("stream_options");
    if (!options.is_null() && !options.is_object()) {
      return Refuse("stream_options", "must be an object", options);
    }
    reader_.IgnoreUnknown("stream_options", options, {});
  }

  // `where` is the path of `value`.
  void Refuse(const std::string& where, const std::string& must, const OrderedJson& value) {
    reader_.Fail(where.substr(0, where.find_first_of(".[")),
                 fmt::format("{} {}, got {}", where, must, Describe(Json(value))));
  }

  const ResponsesContext& context_;
  std::string reasoning_;       // that was read and belongs to what follows
  std::string reasoning_from_;  // the path of its item
};

}  // namespace

Parsed<ResponsesOptions> ReadResponsesOptions(const Json& body) {
  FieldReader reader(body);
  ResponsesOptions options;
  reader.String("model", kNameBytesMax, options.model);
  reader.String("previous_response_id", kNameBytesMax, options.previous);
  reader.Bool("store", options.store);
  reader.Bool("background", options.background);
  reader.Bool("stream", options.stream);
  if (options.background && !options.store) {
    reader.Fail("background", "background needs store, because its response is fetched later");
  }
  if (reader.error()) return *reader.error();
  return options;
}

Parsed<ResponsesRequest> ReadResponsesRequest(const Json& json, std::string_view body,
                                              const ResponsesContext& context) {
  ResponsesTranslation translation(json, body, context);
  Parsed<TranslatedRequest> made = translation.Run();
  if (auto* error = std::get_if<ApiError>(&made)) return std::move(*error);
  return ResponsesRequest{.made = std::move(std::get<TranslatedRequest>(made)),
                          .input = translation.TakeInput(),
                          .echoed = EchoedInResponses(json)};
}

}  // namespace millrace::serve
