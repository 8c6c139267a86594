#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>

#include "base/log.h"
#include "serve/http/limits.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kRoles[] = {"developer", "system", "user",
                                       "assistant", "tool",   "function"};
constexpr size_t kShownRoleBytes = 64;

void CheckPart(FieldReader& reader, const std::string& where, const Json& part) {
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
    reader.Fail("messages", fmt::format("{} must be an object with a string \"type\", got {}",
                                        where, Describe(part)));
  } else if (part["type"] != Json("text")) {
    reader.Fail(UnsupportedField(
        "messages",
        fmt::format("{}: only parts of type \"text\" are supported, not images or audio; "
                    "got {}",
                    where, Describe(part["type"]))));
  } else if (!part.contains("text") || !part["text"].is_string()) {
    reader.Fail("messages", fmt::format("{}.text must be a string, got {}", where,
                                        Describe(part.value("text", Json()))));
  }
}

void CheckContent(FieldReader& reader, const std::string& where, const Json& content) {
  if (content.is_string()) return;
  if (!content.is_array()) {
    return reader.Fail("messages", fmt::format("{} must be a string or a list of parts, got {}",
                                               where, Describe(content)));
  }
  if (content.size() > kContentPartsMax) {
    return reader.Fail("messages", fmt::format("{} has {} parts, the limit is {}", where,
                                               content.size(), kContentPartsMax));
  }
  for (size_t i = 0; i < content.size() && !reader.failed(); ++i) {
    CheckPart(reader, fmt::format("{}[{}]", where, i), content[i]);
  }
}

void CheckToolCalls(FieldReader& reader, const std::string& where, const Json& calls) {
  if (!calls.is_array()) {
    return reader.Fail("messages",
                       fmt::format("{} must be an array, got {}", where, Describe(calls)));
  }
  for (const Json& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return reader.Fail("messages", where + ": each call must be an object with a \"function\"");
    }
    auto arguments = call["function"].find("arguments");
    if (arguments == call["function"].end() || !arguments->is_string()) continue;
    const auto& text = arguments->get_ref<const std::string&>();
    // A call that was cut off is sent back as it was.
    const Result<Json> parsed = ParseJson(text);
    if (parsed.ok() && !KeysWithinLimit(*parsed)) {
      return reader.Fail("messages",
                         fmt::format("{}: an object in function.arguments has more than "
                                     "{} keys",
                                     where, kObjectKeysMax));
    }
  }
}

void CheckMessage(FieldReader& reader, const std::string& where, const Json& message) {
  if (!message.is_object()) {
    return reader.Fail("messages",
                       fmt::format("{} must be an object, got {}", where, Describe(message)));
  }
  const Json role = message.value("role", Json());
  if (!role.is_string()) {
    return reader.Fail("messages", fmt::format("{}.role must be a string such as \"user\", got {}",
                                               where, Describe(role)));
  }
  if (std::ranges::find(kRoles, role.get_ref<const std::string&>()) == std::end(kRoles)) {
    return reader.Fail(
        "messages",
        fmt::format("{}.role must be one of {}, got \"{}\"", where, fmt::join(kRoles, ", "),
                    Printable(role.get_ref<const std::string&>(), kShownRoleBytes)));
  }
  auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && !calls->is_null();
  if (has_calls) CheckToolCalls(reader, where + ".tool_calls", *calls);
  auto content = message.find("content");
  if (content != message.end() && !content->is_null()) {
    CheckContent(reader, where + ".content", *content);
  } else if (!has_calls && role != Json("assistant")) {
    reader.Fail("messages", where + ".content is required");
  }
}

void CheckMessages(FieldReader& reader) {
  const Json* messages = reader.Find("messages");
  if (messages == nullptr) return reader.Fail("messages", "messages is required");
  if (!messages->is_array() || messages->empty()) {
    return reader.Fail("messages", fmt::format("messages must be a list of at least one message, "
                                               "got {}",
                                               Describe(*messages)));
  }
  if (messages->size() > kMessagesMax) {
    return reader.Fail("messages", fmt::format("messages has {} entries, the limit is {}",
                                               messages->size(), kMessagesMax));
  }
  for (size_t i = 0; i < messages->size() && !reader.failed(); ++i) {
    CheckMessage(reader, fmt::format("messages[{}]", i), (*messages)[i]);
  }
}

// Names end up in prompts and grammars. Empty: none. Adds the name to `names`.
std::string ProblemOf(const Json& function, std::set<std::string>& names) {
  const auto& name = function["name"].get_ref<const std::string&>();
  const bool usual = std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-.:/").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (name.empty() || name.size() > kToolNameBytesMax || !usual) {
    return fmt::format(
        "function.name must be 1 to {} letters, digits and characters of _-.:/, got {}",
        kToolNameBytesMax, Describe(name));
  }
  if (!names.insert(name).second) return fmt::format("function.name \"{}\" occurs twice", name);
  const Json parameters = function.value("parameters", Json());
  if (!parameters.is_null() && !parameters.is_object()) {
    return fmt::format("function.parameters must be a JSON schema, got {}", Describe(parameters));
  }
  const Json strict = function.value("strict", Json());
  if (!strict.is_null() && !strict.is_boolean()) {
    return fmt::format("function.strict must be true or false, got {}", Describe(strict));
  }
  return "";
}

void CheckTools(FieldReader& reader) {
  reader.Array("tools", [&](const Json& tools) {
    std::set<std::string> names;
    if (tools.size() > kToolsMax) {
      return reader.Fail(
          "tools", fmt::format("tools has {} entries, the limit is {}", tools.size(), kToolsMax));
    }
    for (size_t i = 0; i < tools.size(); ++i) {
      const Json& tool = tools[i];
      const bool whole = tool.is_object() && tool.value("type", Json()) == Json("function") &&
                         tool.contains("function") && tool["function"].is_object() &&
                         tool["function"].value("name", Json()).is_string();
      if (!whole) {
        return reader.Fail("tools", fmt::format("tools[{}] must be {{\"type\": \"function\", "
                                                "\"function\": {{\"name\": ...}}}}, got {}",
                                                i, Describe(tool)));
      }
      const std::string problem = ProblemOf(tool["function"], names);
      if (!problem.empty()) return reader.Fail("tools", fmt::format("tools[{}].{}", i, problem));
    }
  });
}

bool HasTool(const Json& tools, const std::string& name) {
  return std::ranges::any_of(
      tools, [&](const Json& tool) { return tool["function"]["name"] == Json(name); });
}

// {"type": "function", "function": {"name": ...}}
void ReadNamedTool(FieldReader& reader, const Json& choice, ToolUse& use) {
  const Json function = choice.value("function", Json());
  const Json name = function.is_object() ? function.value("name", Json()) : Json();
  if (choice.value("type", Json()) != Json("function") || !name.is_string()) {
    return reader.Fail("tool_choice",
                       fmt::format("tool_choice must be \"none\", \"auto\", \"required\" or "
                                   "{{\"type\": \"function\", \"function\": {{\"name\": ...}}}}, "
                                   "got {}",
                                   Describe(choice)));
  }
  use.choice = ToolUse::Choice::kRequired;
  use.only = name.get<std::string>();
}

void ReadToolChoice(FieldReader& reader, ToolUse& use) {
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr || *choice == Json("auto")) return;
  if (*choice == Json("none")) {
    use.choice = ToolUse::Choice::kNone;
  } else if (*choice == Json("required")) {
    use.choice = ToolUse::Choice::kRequired;
  } else if (choice->is_object()) {
    ReadNamedTool(reader, *choice, use);
  } else {
    reader.Fail("tool_choice",
                fmt::format("tool_choice must be \"none\", \"auto\", \"required\" or "
                            "an object that names a tool, got {}",
                            Describe(*choice)));
  }
  const Json* tools = reader.Find("tools");
  if (reader.failed() || use.choice != ToolUse::Choice::kRequired) return;
  if (tools == nullptr || tools->empty()) {
    reader.Fail("tool_choice", "tool_choice asks for a call, but there are no tools");
  } else if (!use.only.empty() && !HasTool(*tools, use.only)) {
    reader.Fail("tool_choice", fmt::format("tool_choice names \"{}\", which is not among the tools",
                                           Printable(use.only, kShownRoleBytes)));
  }
}

void CheckTemplateKwargs(FieldReader& reader) {
  reader.Object("chat_template_kwargs", [&](const Json& kwargs) {
    for (const char* reserved :
         {"messages", "tools", "add_generation_prompt", "chat_template", "tokenize"}) {
      if (kwargs.contains(reserved)) {
        return reader.Fail("chat_template_kwargs",
                           fmt::format("chat_template_kwargs must not set \"{}\"", reserved));
      }
    }
  });
}

void CheckKeys(FieldReader& reader) {
  for (const char* name : {"messages", "tools", "chat_template_kwargs"}) {
    const Json* value = reader.Find(name);
    if (value == nullptr || KeysWithinLimit(*value)) continue;
    RefuseKeys(reader, name);
  }
}

// Makes the arguments of earlier calls objects, which templates expect; none are an empty one.
// REQUIRES: CheckMessage found no error.
void Normalise(OrderedJson& message) {
  auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (calls->empty()) {  // also null
    message.erase("tool_calls");
    return;
  }
  for (OrderedJson& call : *calls) {
    OrderedJson& arguments = call["function"]["arguments"];
    const std::string text = arguments.is_string() ? arguments.get<std::string>() : "";
    if (arguments.is_null() || (arguments.is_string() && text.empty())) {
      arguments = OrderedJson::object();
    } else if (arguments.is_string() && ParseJson(text).ok()) {
      arguments = OrderedJson::parse(text);
    }
  }
}

// Templates that know it read it, or whether to think at all.
void AddReasoningEffort(FieldReader& reader, OrderedJson& kwargs) {
  std::string effort;
  reader.String("reasoning_effort", kShownRoleBytes, effort);
  if (effort.empty()) return;
  if (kwargs.is_null()) kwargs = OrderedJson::object();
  if (!kwargs.contains("reasoning_effort")) kwargs["reasoning_effort"] = effort;
  if (effort == "none" && !kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = false;
}

std::string Text(const OrderedJson& body, const char* name) {
  auto found = body.find(name);
  if (found == body.end() || found->is_null() || found->empty()) return "";
  return found->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

void ReadTools(FieldReader& reader, const OrderedFields& fields, ToolUse& use) {
  CheckTools(reader);
  reader.Bool("parallel_tool_calls", use.many);
  if (reader.failed()) return;
  ReadToolChoice(reader, use);
  const Json* tools = reader.Find("tools");
  if (tools == nullptr) return;
  use.any_strict = std::ranges::any_of(*tools, [](const Json& tool) {
    return tool["function"].value("strict", Json()) == Json(true);
  });
  CheckKeys(reader);
  if (!reader.failed()) use.tools = Text(fields({"tools"}), "tools");
}

// What follows the last message: the beginning of an answer, nothing, or the rest of that message.
void ReadEnd(FieldReader& reader, Conversation& conversation) {
  reader.Bool("continue_final_message", conversation.continue_last);
  if (conversation.continue_last) conversation.add_generation_prompt = false;
  reader.Bool("add_generation_prompt", conversation.add_generation_prompt);
  if (reader.failed() || !conversation.continue_last) return;
  if (conversation.add_generation_prompt) {
    return reader.Fail("continue_final_message",
                       "continue_final_message does not go with add_generation_prompt");
  }
  const Json content = reader.Find("messages")->back().value("content", Json());
  const bool is_empty = content.is_array() ? content.empty() || content.back()["text"] == Json("")
                                           : content.is_null() || content == Json("");
  if (is_empty) {
    reader.Fail("continue_final_message",
                "continue_final_message needs a last message with content");
  }
}

// Clients of vLLM and of others call it reasoning; templates read reasoning_content.
void NameReasoning(OrderedJson& message) {
  const OrderedJson reasoning = message.value("reasoning", OrderedJson());
  if (!reasoning.is_string() || !message.value("reasoning_content", OrderedJson()).is_null())
    return;
  message["reasoning_content"] = reasoning;
}

void ReadConversation(FieldReader& reader, const OrderedFields& fields, bool show_tools,
                      Conversation& conversation) {
  CheckMessages(reader);
  CheckTemplateKwargs(reader);
  CheckKeys(reader);
  ReadEnd(reader, conversation);
  if (reader.failed()) return;
  OrderedJson body = fields({"messages", "tools", "chat_template_kwargs"});
  for (OrderedJson& message : body["messages"]) {
    NameReasoning(message);
    Normalise(message);
  }
  conversation.messages = Text(body, "messages");
  if (show_tools) conversation.tools = Text(body, "tools");
  OrderedJson& kwargs = body["chat_template_kwargs"];
  AddReasoningEffort(reader, kwargs);
  conversation.template_kwargs = Text(body, "chat_template_kwargs");
}

}  // namespace millrace::serve
