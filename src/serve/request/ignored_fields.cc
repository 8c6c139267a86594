#include "serve/request/ignored_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

namespace millrace::serve {
namespace {

bool NameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
         c == '[' || c == ']';
}

constexpr std::string_view kMore = "...";

std::string HeaderSafe(std::string name) {
  if (name.size() > kIgnoredNameBytesMax) name.resize(kIgnoredNameBytesMax);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !NameCharacter(c); }, '?');
  return name;
}

// The value of the header that has these names, which are safe. `more`: there are others.
std::string HeaderOf(std::vector<std::string> names, bool more) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.size() > kIgnoredNamesMax) {
    names.resize(kIgnoredNamesMax);
    more = true;
  }
  if (more) names.emplace_back(kMore);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Whether a template may show a member of a message: it names it, or writes messages as a whole.
bool ShowsMember(std::string_view source, std::string_view name) {
  const auto has = [&](std::string_view text) { return source.find(text) != source.npos; };
  return has(name) || has("message | tojson") || has("message|tojson") ||
         has("messages | tojson") || has("messages|tojson");
}

// The member of an object; null if it is none or lacks it.
const Json* MemberIn(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

class ConversationFields {
 public:
  ConversationFields(FieldReader& reader, std::string_view source)
      : reader_(reader), source_(source) {}

  void Messages(const Json& messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      Message(fmt::format("messages[{}]", i), messages[i]);
    }
  }

  // Most templates write each tool as a whole.
  void Tools(const Json& tools) {
    if (source_.find("tools") != source_.npos) return;
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string where = fmt::format("tools[{}]", i);
      reader_.IgnoreUnknown(where, tools[i], {"type", "function"});
      if (const Json* function = MemberIn(tools[i], "function")) {
        reader_.IgnoreUnknown(where + ".function", *function,
                              {"name", "description", "parameters", "strict"});
      }
    }
  }

 private:
  // `known` have an effect, or are what clients repeat of an answer.
  void Check(const std::string& where, const Json& object,
             std::initializer_list<std::string_view> known) {
    if (!object.is_object()) return;
    for (const auto& [name, value] : object.items()) {
      if (std::ranges::find(known, name) != known.end() || ShowsMember(source_, name)) continue;
      reader_.IgnoreUnknown(where, Json{{name, value}}, {});
    }
  }

  void Message(const std::string& where, const Json& message) {
    Check(where, message,
          {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content",
           "reasoning", "refusal", "id", "function_call", "prefix", "cache_control"});
    if (const Json* content = MemberIn(message, "content"); content && content->is_array()) {
      for (size_t i = 0; i < content->size(); ++i) {
        Check(fmt::format("{}.content[{}]", where, i), (*content)[i],
              {"type", "text", "cache_control"});
      }
    }
    const Json* calls = MemberIn(message, "tool_calls");
    for (size_t i = 0; calls && calls->is_array() && i < calls->size(); ++i) {
      const std::string call = fmt::format("{}.tool_calls[{}]", where, i);
      Check(call, (*calls)[i], {"id", "type", "index", "function"});
      if (const Json* function = MemberIn((*calls)[i], "function")) {
        Check(call + ".function", *function, {"name", "arguments"});
      }
    }
  }

  FieldReader& reader_;
  const std::string_view source_;
};

void AddNames(std::string_view header, std::vector<std::string>& names) {
  while (!header.empty()) {
    const size_t end = std::min(header.find(", "), header.size());
    names.emplace_back(header.substr(0, end));
    header.remove_prefix(std::min(end + 2, header.size()));
  }
}

}  // namespace

void IgnoreUnknownInConversation(FieldReader& reader, std::string_view chat_template) {
  ConversationFields fields(reader, chat_template);
  if (const Json* messages = reader.Find("messages")) fields.Messages(*messages);
  if (const Json* tools = reader.Find("tools")) fields.Tools(*tools);
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr || !choice->is_object()) return;
  reader.IgnoreUnknown("tool_choice", *choice, {"type", "function"});
  reader.IgnoreUnknown("tool_choice.function", choice->value("function", Json()), {"name"});
}

void IgnoreKnownFields(FieldReader& reader) {
  // Fields for the bookkeeping of OpenAI's own service.
  reader.Ignore("user");
  reader.Ignore("safety_identifier");
  reader.Ignore("metadata", Json::object());
  reader.Ignore("store", false);
  reader.Ignore("service_tier", "auto");
  reader.Ignore("prompt_cache_retention");
  // Fields of vLLM.
  reader.Ignore("spaces_between_special_tokens", true);
  reader.Ignore("return_prompt_text", false);
  reader.Ignore("return_token_offsets", false);
  reader.Ignore("kv_transfer_params");
  reader.Ignore("vllm_xargs", Json::object());
}

void IgnoreKnownChatFields(FieldReader& reader) {
  reader.Ignore("verbosity", "medium");
  reader.Ignore("prediction");
  reader.Ignore("media_io_kwargs", Json::object());
  reader.Ignore("mm_processor_kwargs", Json::object());
}

std::string IgnoredHeaderValue(const FieldReader& reader) {
  std::vector<std::string> names = reader.IgnoredFields(kIgnoredNamesMax + 1);
  for (std::string& name : names) name = HeaderSafe(std::move(name));
  return HeaderOf(std::move(names), false);
}

std::string JoinIgnored(std::string_view first, std::string_view second,
                        const std::function<std::string(std::string_view)>& rename) {
  std::vector<std::string> names, own;
  AddNames(first, names);
  for (std::string& name : names) name = HeaderSafe(rename(name));
  AddNames(second, own);
  std::ranges::move(own, std::back_inserter(names));
  const bool more = std::erase(names, kMore) > 0;
  return HeaderOf(std::move(names), more);
}

}  // namespace millrace::serve
