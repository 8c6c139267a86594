// Errors of a chat template that the client's data caused.
#include <fmt/format.h>

#include <string>

#include "base/log.h"
#include "serve/request/parse_common.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

constexpr size_t kShownValueBytes = 80;

std::string Shown(const Json& value) {
  return value.is_string() ? '"' + Printable(value.get<std::string>(), kShownValueBytes) + '"'
                           : Describe(value);
}

// What templates expect of a call, and the first of it that is not there. Empty: nothing.
std::string ProblemOfCall(const std::string& where, const Json& call) {
  const Json function = call.value("function", Json());
  if (!function.value("name", Json()).is_string()) return where + ".function.name is missing";
  const Json arguments = function.value("arguments", Json());
  if (!arguments.is_object()) {
    return fmt::format("{}.function.arguments must be a JSON object, got {}", where,
                       Shown(arguments));
  }
  return "";
}

std::string ProblemOfMessages(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string where = fmt::format("messages[{}]", i);
    const Json calls = message.value("tool_calls", Json());
    for (size_t c = 0; c < calls.size(); ++c) {
      std::string problem = ProblemOfCall(fmt::format("{}.tool_calls[{}]", where, c), calls[c]);
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

// Fields that a client may leave out and a template may insist on.
std::string MissingFields(const Json& messages, const Json& tools) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const Json calls = message.value("tool_calls", Json());
    for (size_t c = 0; c < calls.size(); ++c) {
      if (calls[c].contains("id")) continue;
      return fmt::format("messages[{}].tool_calls[{}].id is missing", i, c);
    }
    if (message.value("role", Json()) != Json("tool")) continue;
    for (const char* name : {"tool_call_id", "name"}) {
      if (!message.contains(name)) return fmt::format("messages[{}].{} is missing", i, name);
    }
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json function = tools[i].value("function", Json());
    const Json parameters = function.value("parameters", Json());
    if (!function.contains("description")) {
      return fmt::format("tools[{}].function.description is missing", i);
    }
    if (!parameters.is_object()) return fmt::format("tools[{}].function.parameters is missing", i);
    if (!parameters.contains("properties")) {
      return fmt::format("tools[{}].function.parameters.properties is missing", i);
    }
  }
  return "";
}

}  // namespace

ApiError TemplateError(const Status& status, const Conversation& conversation, bool own) {
  constexpr std::string_view kOwnWords = "the chat template says";
  ApiError error = FromStatus(status, own ? "chat_template" : "messages");
  const Result<Json> messages = ParseJson(conversation.messages);
  const Result<Json> tools = ParseJson(conversation.tools);
  if (!messages.ok()) return error;
  std::string problem = ProblemOfMessages(*messages);
  if (!problem.empty()) {
    error.param = "messages";
    error.message = fmt::format("{} ({})", problem, status.message());
  } else if (status.message().starts_with(kOwnWords)) {
    error.message = fmt::format("{}: {}", error.param, status.message());
  } else if (!own) {
    problem = MissingFields(*messages, tools.ok() ? *tools : Json());
    error.message =
        fmt::format("the chat template cannot show messages: {}{}", status.message(),
                    problem.empty() ? "" : "; it may need what is not there: " + problem);
    if (problem.starts_with("tools")) error.param = "tools";
  }
  return error;
}

}  // namespace millrace::serve
