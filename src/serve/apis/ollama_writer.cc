#include "serve/apis/ollama_writer.h"

#include <cmath>

namespace millrace::serve {
namespace {

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Calls with their arguments as objects. One that is cut off has none, and is left out.
Json OllamaCalls(const std::vector<CallPart>& calls) {
  Json list = Json::array();
  for (const CallPart& call : calls) {
    const Json arguments = Json::parse(call.arguments, nullptr, false);
    if (!arguments.is_object()) continue;
    list.push_back(
        {{"id", call.id},
         {"function", {{"index", list.size()}, {"name", call.name}, {"arguments", arguments}}}});
  }
  return list;
}

}  // namespace

// With what `part` has, and with those of `calls` that are whole.
Json OllamaWriter::Line(const ChoicePart& part, const std::vector<CallPart>& calls) const {
  Json line = {
      {"model", head().model}, {"created_at", OllamaTime(head().created)}, {"done", false}};
  if (part.has_logprobs) line["logprobs"] = ChatLogprobs(part.logprobs)["content"];
  if (route_ == OllamaRoute::kGenerate) {
    line["response"] = part.text;
    if (!part.reasoning.empty()) line["thinking"] = part.reasoning;
    return line;
  }
  Json message = {{"role", "assistant"}, {"content", part.text}};
  if (!part.reasoning.empty()) message["thinking"] = part.reasoning;
  if (Json whole = OllamaCalls(calls); !whole.empty()) message["tool_calls"] = std::move(whole);
  line["message"] = std::move(message);
  return line;
}

Json OllamaWriter::Last(Json line, const AnswerEnd& end) const {
  line["done"] = true;
  line["done_reason"] = finish_reason_ == "length" ? "length" : "stop";
  line["prompt_eval_count"] = end.usage.prompt_tokens;
  line["eval_count"] = end.usage.completion_tokens;
  if (end.times) {
    const RequestPhases& phases = end.times->phases;
    // What follows the prompt counts as evaluation, also when another worker continues.
    line["total_duration"] = Nanoseconds(end.times->e2e.seconds());
    line["load_duration"] = Nanoseconds(phases.queue.seconds());
    line["prompt_eval_duration"] = Nanoseconds(phases.prefill.seconds());
    line["eval_duration"] =
        Nanoseconds(phases.hold.seconds() + phases.transfer.seconds() + phases.decode.seconds());
  }
  return line;
}

Json OllamaWriter::Whole(std::vector<ChoicePart> choices, const AnswerEnd& end) {
  const ChoicePart& part = choices.front();
  finish_reason_ = part.finish_reason;
  return Last(Line(part, part.calls), end);
}

std::string OllamaWriter::Part(const ChoicePart& part, const UsageCounts&) {
  if (!part.finish_reason.empty()) finish_reason_ = part.finish_reason;
  // A call is shown when it is whole: its arguments are an object.
  for (const CallPart& call : part.calls) {
    if (static_cast<size_t>(call.index) >= calls_.size()) {
      calls_.push_back(call);
    } else {
      calls_[static_cast<size_t>(call.index)].arguments += call.arguments;
    }
  }
  if (part.text.empty() && part.reasoning.empty() && !part.has_logprobs) return "";
  return DumpJson(Line(part, {})) + "\n";
}

std::string OllamaWriter::Done(const AnswerEnd& end) {
  std::string out;
  if (!OllamaCalls(calls_).empty()) out = DumpJson(Line({}, calls_)) + "\n";
  return out + DumpJson(Last(Line({}, {}), end)) + "\n";
}

std::string OllamaWriter::StreamError(const ApiError& error) {
  return DumpJson(OllamaError(error)) + "\n";
}

}  // namespace millrace::serve
