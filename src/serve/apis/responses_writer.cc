#include "serve/apis/responses_writer.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::serve {
namespace {

Json ResponseUsage(const UsageCounts& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
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

Json CallItem(const std::string& id, const CallPart& call, const std::string& arguments,
              const char* status) {
  return {{"id", id},          {"type", "function_call"}, {"call_id", call.id},
          {"name", call.name}, {"arguments", arguments},  {"status", status}};
}

// The log-probabilities of a choice's tokens; none: an empty list.
Json LogprobsOf(const ChoicePart& part) {
  return part.has_logprobs ? ChatLogprobs(part.logprobs)["content"] : Json::array();
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

Json ResponseError(const std::string& message) {
  return {{"code", "server_error"}, {"message", message}};
}

// The response object with the items so far.
Json ResponsesWriter::Object(const char* status) const {
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
  object["usage"] = usage_ ? ResponseUsage(*usage_) : Json();
  return object;
}

Json ResponsesWriter::Ended(const char* status, const Json& error) {
  Json object = Object(status);
  object["error"] = error;
  if (origin_.ended) origin_.ended(object);
  return object;
}

Json ResponsesWriter::Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) {
  model_ = head().model;
  usage_ = end.usage;
  const ChoicePart& part = choices.front();
  if (!part.reasoning.empty()) output_.push_back(ReasoningItem(ItemId(), part.reasoning));
  if (!part.text.empty()) {
    output_.push_back(
        MessageItem(ItemId(), part.text, LogprobsOfText(LogprobsOf(part), part.text), "completed"));
  }
  for (const CallPart& call : part.calls) {
    output_.push_back(CallItem(ItemId(), call, call.arguments, CallStatus(call.arguments)));
  }
  return Ended(part.finish_reason == "length" ? "incomplete" : "completed", nullptr);
}

std::string ResponsesWriter::Event(const std::string& type, Json data) {
  data["type"] = type;
  data["sequence_number"] = sequence_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, DumpJson(data));
}

std::string ResponsesWriter::Begin() {
  if (sequence_ > 0) return "";
  model_ = head().model;
  std::string out = Event("response.created", {{"response", Object("in_progress")}});
  out += Event("response.in_progress", {{"response", Object("in_progress")}});
  return out;
}

std::string ResponsesWriter::ItemId() const {
  return fmt::format("{}_{}", origin_.id, output_.size());
}

Json ResponsesWriter::Item(const char* status) const {
  switch (kind_) {
    case Kind::kReasoning: return ReasoningItem(ItemId(), text_);
    case Kind::kCall: return CallItem(ItemId(), call_, text_, status);
    case Kind::kMessage:
    case Kind::kNone: break;
  }
  return MessageItem(ItemId(), text_, logprobs_, status);
}

std::string ResponsesWriter::Open(Kind kind, const CallPart& call) {
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

std::string ResponsesWriter::Close() {
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

std::string ResponsesWriter::AddText(Kind kind, const std::string& text, const Json& logprobs) {
  if (text.empty()) return "";
  std::string out = kind_ == kind ? "" : Open(kind, {});
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

std::string ResponsesWriter::AddCall(const CallPart& call) {
  std::string out;
  if (!call.name.empty()) out = Open(Kind::kCall, call);  // the first delta of a call has its name
  if (call.arguments.empty()) return out;
  text_ += call.arguments;
  out +=
      Event("response.function_call_arguments.delta",
            {{"item_id", ItemId()}, {"output_index", output_.size()}, {"delta", call.arguments}});
  return out;
}

std::string ResponsesWriter::Part(const ChoicePart& part, const UsageCounts&) {
  std::string out = Begin();
  const size_t open = part.ContinuesCall() ? 1 : 0;
  if (open > 0) out += AddCall(part.calls.front());
  out += AddText(Kind::kReasoning, part.reasoning, Json::array());
  if (!part.text.empty()) {
    const Json logprobs = LogprobsOf(part);
    out += AddText(Kind::kMessage, part.text,
                   part.reasoning.empty() ? logprobs : LogprobsOfText(logprobs, part.text));
  }
  for (size_t i = open; i < part.calls.size(); ++i) out += AddCall(part.calls[i]);
  if (!part.finish_reason.empty()) finish_reason_ = part.finish_reason;
  return out;
}

std::string ResponsesWriter::Done(const AnswerEnd& end) {
  usage_ = end.usage;
  std::string out = Close();
  const char* status = finish_reason_ == "length" ? "incomplete" : "completed";
  out += Event(std::string("response.") + status, {{"response", Ended(status, nullptr)}});
  return out;
}

std::string ResponsesWriter::StreamError(const ApiError& error) {
  return Event("response.failed", {{"response", Ended("failed", ResponseError(error.message))}});
}

}  // namespace millrace::serve
