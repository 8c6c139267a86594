#include "serve/responses_api.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace millrace::serve {
namespace {

class ResponsesTranslation : public ChatTranslation {
 public:
  using ChatTranslation::ChatTranslation;

 private:
  void Read() override {
    for (const char* field : {"model", "temperature", "top_p", "stream", "parallel_tool_calls",
                              "seed", "top_logprobs", "user", "metadata", "service_tier"}) {
      Copy(field);
    }
    RefuseState();
    ReadMaxTokens();
    chat_["messages"] = OrderedJson::array();
    ReadInput();
    ReadTools();
    ReadToolChoice();
    ReadFormat();
    ReadReasoning();
    AskForUsage();
    reader_.Ignore("store", false);
    reader_.Ignore("include", Json::array());
    reader_.Ignore("truncation", "disabled");
  }

  // What needs responses that are stored.
  void RefuseState() {
    const char* instead = "responses are not stored; send the whole conversation as input";
    reader_.Unsupported("previous_response_id", instead);
    reader_.Unsupported("conversation", instead);
    reader_.Unsupported("background", "responses are not stored; use a stream that can be resumed");
    reader_.Unsupported("prompt", "send instructions and input");
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
    const OrderedJson input = Take("input");
    if (input.is_string()) return Add("user", input.get<std::string>());
    if (!input.is_array() || input.empty()) {
      return reader_.Fail("input", "input must be a string or a list of at least one item");
    }
    for (size_t i = 0; i < input.size() && !reader_.failed(); ++i) {
      ReadItem(fmt::format("input[{}]", i), input[i]);
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
};

Json ResponseUsage(const Json& usage) {
  const auto number = [](const Json& object, const char* name) {
    return object.is_object() ? object.value(name, int64_t{0}) : 0;
  };
  const Json prompt = usage.value("prompt_tokens_details", Json());
  const Json completion = usage.value("completion_tokens_details", Json());
  return {{"input_tokens", number(usage, "prompt_tokens")},
          {"input_tokens_details", {{"cached_tokens", number(prompt, "cached_tokens")}}},
          {"output_tokens", number(usage, "completion_tokens")},
          {"output_tokens_details", {{"reasoning_tokens", number(completion, "reasoning_tokens")}}},
          {"total_tokens", number(usage, "total_tokens")}};
}

Json MessageItem(const std::string& id, const std::string& text, const char* status) {
  const Json part = {{"type", "output_text"},
                     {"text", text},
                     {"annotations", Json::array()},
                     {"logprobs", Json::array()}};
  return {{"id", id},
          {"type", "message"},
          {"role", "assistant"},
          {"status", status},
          {"content", Json::array({part})}};
}

Json ReasoningItem(const std::string& id, const std::string& text) {
  const Json part = {{"type", "reasoning_text"}, {"text", text}};
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", Json::array({part})}};
}

Json CallItem(const std::string& id, const Json& call, const std::string& arguments,
              const char* status) {
  return {{"id", id},
          {"type", "function_call"},
          {"call_id", call["id"]},
          {"name", call["function"]["name"]},
          {"arguments", arguments},
          {"status", status}};
}

Json HeadOf(const Json& answer) {
  const std::string id = answer.value("id", "");
  return {{"id", "resp_" + id.substr(id.find('-') + 1)},
          {"created_at", answer["created"]},
          {"model", answer["model"]}};
}

}  // namespace

Parsed<TranslatedRequest> ChatOfResponses(std::string_view body) {
  return TranslateToChat<ResponsesTranslation>(body);
}

Json EchoedInResponses(std::string_view text) {
  const Json body = Json::parse(text, nullptr, false);
  Json echoed = {{"instructions", nullptr},    {"max_output_tokens", nullptr},
                 {"metadata", Json::object()}, {"parallel_tool_calls", true},
                 {"temperature", nullptr},     {"text", {{"format", {{"type", "text"}}}}},
                 {"tool_choice", "auto"},      {"tools", Json::array()},
                 {"top_p", nullptr},           {"truncation", "disabled"},
                 {"reasoning", nullptr},       {"user", nullptr}};
  for (auto& [name, value] : echoed.items()) {
    if (body.contains(name) && !body[name].is_null()) value = body[name];
  }
  echoed["previous_response_id"] = nullptr;
  echoed["store"] = false;
  echoed["background"] = false;
  return echoed;
}

Json ResponsesReply::Error(const Json& error, int) { return {{"error", error}}; }

// The response object with the items so far.
Json ResponsesReply::Object(const char* status) const {
  Json object = echoed_;
  object.update(head_);
  object["object"] = "response";
  object["status"] = status;
  object["error"] = nullptr;
  object["incomplete_details"] = nullptr;
  if (std::string_view(status) == "incomplete") {
    object["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  object["output"] = output_;
  object["usage"] = usage_.is_object() ? ResponseUsage(usage_) : Json();
  return object;
}

Json ResponsesReply::Whole(const Json& answer) {
  head_ = HeadOf(answer);
  usage_ = answer["usage"];
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  const std::string id = head_["id"].get<std::string>();
  const auto next = [&] { return fmt::format("{}_{}", id, output_.size()); };
  if (const std::string text = message.value("reasoning_content", ""); !text.empty()) {
    output_.push_back(ReasoningItem(next(), text));
  }
  if (message["content"].is_string() && message["content"] != Json("")) {
    output_.push_back(MessageItem(next(), message["content"].get<std::string>(), "completed"));
  }
  for (const Json& call : message.value("tool_calls", Json::array())) {
    output_.push_back(
        CallItem(next(), call, call["function"]["arguments"].get<std::string>(), "completed"));
  }
  return Object(choice["finish_reason"] == Json("length") ? "incomplete" : "completed");
}

std::string ResponsesReply::Event(const std::string& type, Json data) {
  data["type"] = type;
  data["sequence_number"] = sequence_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, DumpJson(data));
}

std::string ResponsesReply::Begin(const Json& chunk) {
  if (!head_.is_null()) return "";
  head_ = HeadOf(chunk);
  std::string out = Event("response.created", {{"response", Object("in_progress")}});
  out += Event("response.in_progress", {{"response", Object("in_progress")}});
  return out;
}

std::string ResponsesReply::ItemId() const {
  return fmt::format("{}_{}", head_["id"].get<std::string>(), output_.size());
}

Json ResponsesReply::Item(const char* status) const {
  switch (kind_) {
    case Kind::kReasoning: return ReasoningItem(ItemId(), text_);
    case Kind::kCall: return CallItem(ItemId(), call_, text_, status);
    case Kind::kMessage:
    case Kind::kNone: break;
  }
  return MessageItem(ItemId(), text_, status);
}

std::string ResponsesReply::Open(Kind kind, const Json& call) {
  std::string out = Close();
  kind_ = kind;
  call_ = call;
  text_.clear();
  Json item = Item("in_progress");
  if (item.contains("content")) item["content"] = Json::array();
  out += Event("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
  if (kind != Kind::kMessage) return out;
  const Json part = MessageItem("", "", "in_progress")["content"][0];
  out += Event("response.content_part.added", {{"item_id", ItemId()},
                                               {"output_index", output_.size()},
                                               {"content_index", 0},
                                               {"part", part}});
  return out;
}

std::string ResponsesReply::Close() {
  if (kind_ == Kind::kNone) return "";
  std::string out;
  Json at = {{"item_id", ItemId()}, {"output_index", output_.size()}};
  const Json item = Item("completed");
  if (kind_ == Kind::kCall) {
    at["arguments"] = text_;
    at["name"] = item["name"];
    out += Event("response.function_call_arguments.done", at);
  } else {
    at["content_index"] = 0;
    at["text"] = text_;
    if (kind_ == Kind::kMessage) at["logprobs"] = Json::array();
    out += Event(
        kind_ == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done", at);
  }
  if (kind_ == Kind::kMessage) {
    at.erase("text");
    at.erase("logprobs");
    at["part"] = item["content"][0];
    out += Event("response.content_part.done", at);
  }
  out += Event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(item);
  kind_ = Kind::kNone;
  return out;
}

std::string ResponsesReply::AddText(Kind kind, const std::string& text) {
  if (text.empty()) return "";
  std::string out = kind_ == kind ? "" : Open(kind, Json());
  text_ += text;
  Json delta = {{"item_id", ItemId()},
                {"output_index", output_.size()},
                {"content_index", 0},
                {"delta", text}};
  if (kind == Kind::kMessage) delta["logprobs"] = Json::array();
  out +=
      Event(kind == Kind::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta",
            std::move(delta));
  return out;
}

std::string ResponsesReply::AddCall(const Json& call) {
  std::string out;
  if (call.contains("id")) out = Open(Kind::kCall, call);  // the first delta of a call has its id
  const std::string arguments = call["function"].value("arguments", "");
  if (arguments.empty()) return out;
  text_ += arguments;
  out += Event("response.function_call_arguments.delta",
               {{"item_id", ItemId()}, {"output_index", output_.size()}, {"delta", arguments}});
  return out;
}

std::string ResponsesReply::Chunk(const Json& chunk) {
  std::string out = Begin(chunk);
  if (chunk.contains("usage") && !chunk["usage"].is_null()) usage_ = chunk["usage"];
  if (chunk["choices"].empty()) return out;
  const Json& choice = chunk["choices"][0];
  const Json& delta = choice["delta"];
  out += AddText(Kind::kReasoning, delta.value("reasoning_content", ""));
  const Json content = delta.value("content", Json());
  if (content.is_string()) out += AddText(Kind::kMessage, content.get<std::string>());
  for (const Json& call : delta.value("tool_calls", Json::array())) out += AddCall(call);
  if (!choice["finish_reason"].is_null()) finish_reason_ = choice["finish_reason"];
  return out;
}

std::string ResponsesReply::Done() {
  std::string out = Close();
  const char* status = finish_reason_ == Json("length") ? "incomplete" : "completed";
  out += Event(std::string("response.") + status, {{"response", Object(status)}});
  return out;
}

std::string ResponsesReply::StreamError(const Json& error) {
  Json object = head_.is_null() ? Json::object() : Object("failed");
  object["error"] = {{"code", "server_error"}, {"message", error.value("message", Json(""))}};
  return Event("response.failed", {{"response", object}});
}

}  // namespace millrace::serve
