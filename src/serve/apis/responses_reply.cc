#include "serve/apis/responses_reply.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::serve {
namespace {

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

Json MessageItem(const std::string& id, const std::string& text, const Json& logprobs,
                 const char* status) {
  const Json part = {{"type", "output_text"},
                     {"text", text},
                     {"annotations", Json::array()},
                     {"logprobs", logprobs}};
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

// Of the item of a call that has ended: its arguments may be cut off.
const char* CallStatus(const std::string& arguments) {
  return Json::parse(arguments, nullptr, false).is_object() ? "completed" : "incomplete";
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

// The log-probabilities of a choice's tokens; none: an empty list.
Json LogprobsOf(const Json& choice) {
  const Json logprobs = choice.value("logprobs", Json());
  return logprobs.is_object() ? logprobs["content"] : Json::array();
}

std::string BytesOf(const Json& token) {
  std::string bytes;
  for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
  return bytes;
}

// Those of the tokens that `text` consists of. An answer's other tokens are reasoning, calls, and
// the marks around them.
Json LogprobsOfText(const Json& logprobs, const std::string& text) {
  std::string all;
  for (const Json& token : logprobs) all += BytesOf(token);
  const size_t begin = all.rfind(text);
  if (begin == std::string::npos) return logprobs;
  Json kept = Json::array();
  size_t at = 0;
  for (const Json& token : logprobs) {
    const size_t end = at + BytesOf(token).size();
    if (end > begin && at < begin + text.size()) kept.push_back(token);
    at = end;
  }
  return kept;
}

}  // namespace

Json ResponseError(const Json& error) {
  return {{"code", "server_error"}, {"message", error.value("message", Json(""))}};
}

Json ResponsesReply::Error(const Json& error, int) { return {{"error", error}}; }

// The response object with the items so far.
Json ResponsesReply::Object(const char* status) const {
  Json object = origin_.echoed;
  object["id"] = origin_.id;
  object["created_at"] = origin_.created_s;
  object["model"] = model_;
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

Json ResponsesReply::Ended(const char* status, const Json& error) {
  Json object = Object(status);
  object["error"] = error;
  if (origin_.ended) origin_.ended(object);
  return object;
}

Json ResponsesReply::Whole(const Json& answer) {
  model_ = answer["model"];
  usage_ = answer["usage"];
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  if (const std::string text = message.value("reasoning_content", ""); !text.empty()) {
    output_.push_back(ReasoningItem(ItemId(), text));
  }
  if (message["content"].is_string() && message["content"] != Json("")) {
    const auto text = message["content"].get<std::string>();
    output_.push_back(
        MessageItem(ItemId(), text, LogprobsOfText(LogprobsOf(choice), text), "completed"));
  }
  for (const Json& call : message.value("tool_calls", Json::array())) {
    const auto arguments = call["function"]["arguments"].get<std::string>();
    output_.push_back(CallItem(ItemId(), call, arguments, CallStatus(arguments)));
  }
  return Ended(choice["finish_reason"] == Json("length") ? "incomplete" : "completed", nullptr);
}

std::string ResponsesReply::Event(const std::string& type, Json data) {
  data["type"] = type;
  data["sequence_number"] = sequence_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, DumpJson(data));
}

std::string ResponsesReply::Begin(const Json& chunk) {
  if (sequence_ > 0) return "";
  model_ = chunk["model"];
  std::string out = Event("response.created", {{"response", Object("in_progress")}});
  out += Event("response.in_progress", {{"response", Object("in_progress")}});
  return out;
}

std::string ResponsesReply::ItemId() const {
  return fmt::format("{}_{}", origin_.id, output_.size());
}

Json ResponsesReply::Item(const char* status) const {
  switch (kind_) {
    case Kind::kReasoning: return ReasoningItem(ItemId(), text_);
    case Kind::kCall: return CallItem(ItemId(), call_, text_, status);
    case Kind::kMessage:
    case Kind::kNone: break;
  }
  return MessageItem(ItemId(), text_, logprobs_, status);
}

std::string ResponsesReply::Open(Kind kind, const Json& call) {
  std::string out = Close();
  kind_ = kind;
  call_ = call;
  text_.clear();
  logprobs_ = Json::array();
  Json item = Item("in_progress");
  if (item.contains("content")) item["content"] = Json::array();
  out += Event("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
  if (kind != Kind::kMessage) return out;
  const Json part = MessageItem("", "", Json::array(), "in_progress")["content"][0];
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
  const Json item = Item(kind_ == Kind::kCall ? CallStatus(text_) : "completed");
  if (kind_ == Kind::kCall) {
    at["arguments"] = text_;
    at["name"] = item["name"];
    out += Event("response.function_call_arguments.done", at);
  } else {
    at["content_index"] = 0;
    at["text"] = text_;
    if (kind_ == Kind::kMessage) at["logprobs"] = logprobs_;
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

std::string ResponsesReply::AddText(Kind kind, const std::string& text, const Json& logprobs) {
  if (text.empty()) return "";
  std::string out = kind_ == kind ? "" : Open(kind, Json());
  text_ += text;
  Json delta = {{"item_id", ItemId()},
                {"output_index", output_.size()},
                {"content_index", 0},
                {"delta", text}};
  if (kind == Kind::kMessage) {
    delta["logprobs"] = logprobs;
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
  }
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
  const std::string reasoning = delta.value("reasoning_content", "");
  out += AddText(Kind::kReasoning, reasoning, Json::array());
  if (const Json content = delta.value("content", Json()); content.is_string()) {
    const auto text = content.get<std::string>();
    const Json logprobs = LogprobsOf(choice);
    out += AddText(Kind::kMessage, text,
                   reasoning.empty() ? logprobs : LogprobsOfText(logprobs, text));
  }
  for (const Json& call : delta.value("tool_calls", Json::array())) out += AddCall(call);
  if (!choice["finish_reason"].is_null()) finish_reason_ = choice["finish_reason"];
  return out;
}

std::string ResponsesReply::Done() {
  std::string out = Close();
  const char* status = finish_reason_ == Json("length") ? "incomplete" : "completed";
  out += Event(std::string("response.") + status, {{"response", Ended(status, nullptr)}});
  return out;
}

std::string ResponsesReply::StreamError(const Json& error) {
  return Event("response.failed", {{"response", Ended("failed", ResponseError(error))}});
}

}  // namespace millrace::serve
