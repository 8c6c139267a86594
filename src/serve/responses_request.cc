#include "serve/responses_request.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "serve/limits.h"

namespace millrace::serve {
namespace {

class ResponsesTranslation : public ChatTranslation {
 public:
  ResponsesTranslation(const Json& json, std::string_view body, const ResponsesContext* context)
      : ChatTranslation(json, body), context_(*context) {}

 private:
  void Read() override {
    for (const char* field :
         {"model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed", "top_logprobs",
          "user", "metadata", "service_tier", "prompt_cache_key"}) {
      Copy(field);
    }
    ReadState();
    ReadMaxTokens();
    chat_["messages"] = OrderedJson::array();
    ReadInput();
    ReadTools();
    ReadToolChoice();
    ReadFormat();
    ReadReasoning();
    AskForUsage();
    reader_.Ignore("include", Json::array());
    reader_.Ignore("truncation", "disabled");
  }

  // ReadResponsesOptions has read their values.
  void ReadState() {
    for (const char* field : {"previous_response_id", "store", "background"}) reader_.Find(field);
    reader_.Unsupported("conversation", "continue with previous_response_id");
    reader_.Unsupported("prompt", "send instructions and input");
    chat_["request_id"] = context_.id.substr(kResponseIdBegin.size());
    if (context_.seed && !chat_.contains("seed")) chat_["seed"] = *context_.seed;
  }

  void ReadMaxTokens() {
    std::optional<int> max_tokens;
    reader_.Int("max_output_tokens", 1, kMaxTokensMax, max_tokens);
    if (max_tokens) chat_["max_tokens"] = *max_tokens;
  }

  void ReadInput() {
    std::string instructions;
    reader_.String("instructions", kAnyTextBytes, instructions);
    if (!instructions.empty()) Add("system", instructions);
    if (context_.earlier != nullptr) ReadItems("previous_response_id", *context_.earlier);
    const OrderedJson input = Take("input");
    if (input.is_string()) return Add("user", input.get<std::string>());
    if (!input.is_array() || input.empty()) {
      return reader_.Fail("input", "input must be a string or a list of at least one item");
    }
    ReadItems("input", input);
  }

  void ReadItems(const char* field, const OrderedJson& items) {
    for (size_t i = 0; i < items.size() && !reader_.failed(); ++i) {
      ReadItem(fmt::format("{}[{}]", field, i), items[i]);
    }
  }

  void Add(const OrderedJson& role, const std::string& content) {
    chat_["messages"].push_back({{"role", role}, {"content", content}});
  }

  void ReadItem(const std::string& where, const OrderedJson& item) {
    const auto field = [&](const char* name) { return MemberOf(item, name); };
    const OrderedJson type = field("type");
    if (type == OrderedJson("function_call")) {
      const OrderedJson call = {
          {"id", field("call_id")},
          {"type", "function"},
          {"function", {{"name", field("name")}, {"arguments", field("arguments")}}}};
      // Calls of one turn belong to one message.
      OrderedJson& messages = chat_["messages"];
      if (messages.empty() || messages.back()["role"] != OrderedJson("assistant")) {
        Add("assistant", "");
      }
      messages.back()["tool_calls"].push_back(call);
    } else if (type == OrderedJson("function_call_output")) {
      chat_["messages"].push_back({{"role", "tool"},
                                   {"tool_call_id", field("call_id")},
                                   {"content", TextOf(where + ".output", field("output"))}});
    } else if (type.is_null() || type == OrderedJson("message")) {
      if (!field("role").is_string()) return reader_.Fail("input", where + ".role is required");
      Add(field("role"), TextOf(where + ".content", field("content")));
    } else if (type != OrderedJson("reasoning")) {
      reader_.Fail(UnsupportedField(
          "input", where + ": only items of the types message, function_call, function_call_output "
                           "and reasoning are supported"));
    }
  }

  // Of a string, or a list of parts with text.
  std::string TextOf(const std::string& where, const OrderedJson& content) {
    if (content.is_string()) return content.get<std::string>();
    std::string joined;
    for (const OrderedJson& part : content.is_array() ? content : OrderedJson::array()) {
      const OrderedJson text = MemberOf(part, "text");
      if (!text.is_string()) {
        reader_.Fail(UnsupportedField("input", where + ": only parts with text are supported"));
        return "";
      }
      if (!joined.empty()) joined += '\n';
      joined += text.get<std::string>();
    }
    if (!content.is_array()) reader_.Fail("input", where + " must be a string or a list of parts");
    return joined;
  }

  void ReadTools() {
    const OrderedJson given = Take("tools");
    if (given.is_null()) return;
    if (!given.is_array()) return reader_.Fail("tools", "tools must be a list");
    OrderedJson tools = OrderedJson::array();
    for (const OrderedJson& tool : given) {
      if (MemberOf(tool, "type") != OrderedJson("function")) {
        return reader_.Fail(UnsupportedField(
            "tools",
            fmt::format("tools[{}]: only tools of the type function are available", tools.size())));
      }
      OrderedJson function = tool;
      function.erase("type");
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    if (!tools.empty()) chat_["tools"] = std::move(tools);
  }

  void ReadToolChoice() {
    const OrderedJson choice = Take("tool_choice");
    if (choice.is_object()) {
      chat_["tool_choice"] = {{"type", MemberOf(choice, "type")},
                              {"function", {{"name", MemberOf(choice, "name")}}}};
    } else if (!choice.is_null()) {
      chat_["tool_choice"] = choice;
    }
  }

  void ReadFormat() {
    OrderedJson format = MemberOf(Take("text"), "format");
    if (format.is_null()) return;
    if (MemberOf(format, "type") != OrderedJson("json_schema")) {
      chat_["response_format"] = std::move(format);
      return;
    }
    format.erase("type");
    chat_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(format)}};
  }

  void ReadReasoning() {
    const OrderedJson effort = MemberOf(Take("reasoning"), "effort");
    if (!effort.is_null()) chat_["reasoning_effort"] = effort;
  }

  const ResponsesContext& context_;
};

}  // namespace

Parsed<ResponsesOptions> ReadResponsesOptions(std::string_view body) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  FieldReader reader(std::get<Json>(parsed));
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

Parsed<TranslatedRequest> ChatOfResponses(std::string_view body, const ResponsesContext& context) {
  return TranslateToChat<ResponsesTranslation>(body, &context);
}

OrderedJson InputItems(std::string_view body, const std::string& id) {
  OrderedJson input = OrderedJson::parse(body)["input"];
  if (input.is_string()) {
    const OrderedJson part = {{"type", "input_text"}, {"text", input}};
    input = OrderedJson::array(
        {{{"type", "message"}, {"role", "user"}, {"content", OrderedJson::array({part})}}});
  }
  for (size_t i = 0; i < input.size(); ++i) {
    if (!input[i].contains("type")) input[i]["type"] = "message";
    if (!input[i].contains("id")) input[i]["id"] = fmt::format("{}_input_{}", id, i);
  }
  return input;
}

Json EchoedInResponses(std::string_view text) {
  const Json body = Json::parse(text, nullptr, false);
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

}  // namespace millrace::serve
