#include "text/tool_format.h"

#include <algorithm>

namespace millrace::text {
namespace {

// The first one whose marker a chat template has is the template's. Sources: the templates that the
// models are published with.
constexpr ToolFormat kToolFormats[] = {
    {.name = "deepseek_v3",
     .syntax = CallSyntax::kNameThenJson,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .name_begin = "function<｜tool▁sep｜>",
     .name_end = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .marker = "<｜tool▁call▁begin｜>"},
    {.name = "kimi_k2",
     .syntax = CallSyntax::kNameThenJson,
     .ids = CallIds::kNumbered,
     .section_begin = "<|tool_calls_section_begin|>",
     .call_begin = "<|tool_call_begin|>",
     .name_begin = "functions.",
     .name_end = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>",
     .section_end = "<|tool_calls_section_end|>",
     .marker = "<|tool_call_argument_begin|>"},
    {.name = "glm45",
     .syntax = CallSyntax::kKeyValueTags,
     .section_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .separator = "\n",
     .marker = "<arg_key>"},
    {.name = "qwen3_coder",
     .syntax = CallSyntax::kParameterTags,
     .section_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .bare_begin = "<function=",
     .separator = "\n",
     .marker = "<parameter="},
    {.name = "mistral",
     .syntax = CallSyntax::kJson,
     .ids = CallIds::kNineChars,
     .section_begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .stray_end = "[/TOOL_CALLS]",
     .separator = ", ",
     .marker = "[TOOL_CALLS]"},
    {.name = "hermes",
     .syntax = CallSyntax::kJson,
     .section_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .separator = "\n",
     .marker = "<tool_call>"},
    {.name = "granite",
     .syntax = CallSyntax::kJson,
     .section_begin = "<|tool_call|>",
     .section_end = "<|/tool_call|>",
     .separator = ", ",
     .marker = "<|tool_call|>"},
    {.name = "lfm2",
     .syntax = CallSyntax::kPython,
     .section_begin = "<|tool_call_start|>",
     .section_end = "<|tool_call_end|>",
     .separator = ", ",
     .marker = "<|tool_call_start|>"},
    {.name = "llama3_json",
     .syntax = CallSyntax::kJson,
     .arguments_key = "parameters",
     .separator = "; ",
     .marker = "<|python_tag|>"},
    {.name = "pythonic", .syntax = CallSyntax::kPython, .separator = ", "},
    {.name = "json", .syntax = CallSyntax::kJson, .separator = ", "},
};

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "think", .begin = "<think>", .end = "</think>"},
    {.name = "mistral", .begin = "[THINK]", .end = "[/THINK]"},
    {.name = "kimi", .begin = "◁think▷", .end = "◁/think▷"},
    {.name = "seed", .begin = "<seed:think>", .end = "</seed:think>"},
};

template <typename T>
const T* Named(std::span<const T> all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &T::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kToolFormats; }
const ToolFormat* FindToolFormat(std::string_view name) { return Named(ToolFormats(), name); }

const ToolFormat* ToolFormatOf(std::string_view chat_template) {
  for (const ToolFormat& format : kToolFormats) {
    if (!format.marker.empty() && chat_template.find(format.marker) != std::string_view::npos) {
      return &format;
    }
  }
  // Llama 3.2 and later have no tag of their own.
  const bool llama = chat_template.find("<|start_header_id|>") != std::string_view::npos &&
                     chat_template.find("\"parameters\": ") != std::string_view::npos;
  return llama ? FindToolFormat("llama3_json") : nullptr;
}

CallIds CallIdsOf(std::string_view chat_template, const ToolFormat* format) {
  const ToolFormat* own = ToolFormatOf(chat_template);
  if (own != nullptr && own->ids != CallIds::kAny) return own->ids;
  // As Mistral's templates check it, whatever their marks.
  for (const std::string_view check : {"length != 9", "length!=9", "length == 9", "length==9"}) {
    if (chat_template.find(check) != std::string_view::npos) return CallIds::kNineChars;
  }
  return format == nullptr ? CallIds::kAny : format->ids;
}

const ToolFormat& PlainJsonFormat() { return *FindToolFormat("json"); }

std::span<const ReasoningFormat> ReasoningFormats() { return kReasoningFormats; }
const ReasoningFormat* FindReasoningFormat(std::string_view name) {
  return Named(ReasoningFormats(), name);
}

const ReasoningFormat* ReasoningFormatOf(std::string_view chat_template) {
  for (const ReasoningFormat& format : kReasoningFormats) {
    if (chat_template.find(format.end) != std::string_view::npos) return &format;
  }
  return nullptr;
}

std::vector<std::string_view> MarkersOf(const ToolFormat* tools, const ReasoningFormat* reasoning) {
  std::vector<std::string_view> markers;
  if (tools != nullptr) {
    const ToolFormat& f = *tools;
    // Mistral's ids of calls are between two markers; a part of DeepSeek's before a name is one.
    markers = {f.section_begin, f.call_begin, f.name_end, f.call_end, f.section_end, f.stray_end};
    if (f.section_begin.empty()) markers.push_back(kPythonTag);
    if (f.ids == CallIds::kNineChars) markers.push_back(kCallIdTag);
  }
  if (reasoning != nullptr) {
    markers.push_back(reasoning->begin);
    markers.push_back(reasoning->end);
  }
  std::erase(markers, "");
  return markers;
}

bool BeginsInReasoning(const ReasoningFormat& format, std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \n\r\t");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(format.begin);
}

}  // namespace millrace::text
