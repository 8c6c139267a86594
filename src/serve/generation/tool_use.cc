#include "serve/generation/tool_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/output_grammar.h"
#include "serve/request/call_ids.h"
#include "serve/request/field_reader.h"
#include "text/tool_grammar.h"

namespace millrace::serve {
namespace {

using text::CallSyntax;
using text::OrderedJson;
using text::ToolFormat;

class Preparation {
 public:
  Preparation(const ServedModel& model, std::string_view prompt, ChatRequest& request,
              AnswerSplit& split)
      : model_(model), prompt_(prompt), request_(request), split_(split) {}

  std::optional<ApiError> Run() {
    split_.reasoning = model_.reasoning_format;
    split_.hide_reasoning = request_.hide_reasoning;
    split_.begins_in_reasoning = split_.reasoning != nullptr && ReasoningIsOpen();
    if (auto error = UseTools()) return error;
    return ReasonFirst();
  }

 private:
  SamplingParams& params() { return request_.options.params; }

  // By the template, or in the message that the answer continues.
  bool ReasoningIsOpen() const {
    const text::ReasoningFormat& format = *split_.reasoning;
    const Conversation& conversation = request_.conversation;
    if (!conversation.continue_last) {
      return conversation.add_generation_prompt && text::BeginsInReasoning(format, prompt_);
    }
    const OrderedJson messages = OrderedJson::parse(conversation.messages);
    const OrderedJson& whole = messages.back()["content"];
    const OrderedJson& part = whole.is_array() ? whole.back()["text"] : whole;
    const auto& text = part.get_ref<const std::string&>();
    const size_t begin = text.rfind(format.begin), end = text.rfind(format.end);
    return begin != std::string::npos && (end == std::string::npos || end < begin);
  }

  text::SpecialTokenId Special() const {
    return [this](std::string_view text) -> std::optional<TokenId> {
      const auto id = model_.tokenizer->IdOf(text);
      return id && model_.tokenizer->Token(*id).special ? id : std::nullopt;
    };
  }

  std::optional<ApiError> UseTools() {
    const ToolUse& use = request_.tools;
    if (use.tools.empty() || use.choice == ToolUse::Choice::kNone) return std::nullopt;
    NumberCalls();
    if (use.choice == ToolUse::Choice::kRequired) return RequireCalls();
    split_.tools = model_.tool_format;
    if (!use.many) split_.calls_max = 1;
    KeepSchemas();
    if (split_.tools == nullptr || !use.any_strict || !params().grammar.empty())
      return std::nullopt;
    const OrderedJson tools = OrderedJson::parse(use.tools);
    for (size_t i = 0; i < tools.size(); ++i) {
      AddPart(i);
      if (auto error = CheckObject(tools[i])) return error;
    }
    if (auto grammar = text::FreeCallGrammar(*split_.tools, tools)) {
      SetGrammar(*std::move(grammar));
    }
    return std::nullopt;
  }

  std::optional<ApiError> RequireCalls() {
    const ToolUse& use = request_.tools;
    if (!params().grammar.empty()) {
      return BadField("tool_choice",
                      fmt::format("tool_choice asks for a call, and {} for something else",
                                  request_.options.constraint_field));
    }
    const bool own = model_.tool_format != nullptr && text::HasCallGrammar(*model_.tool_format);
    split_.tools = own ? model_.tool_format : &text::PlainJsonFormat();
    split_.calls_only = true;
    OrderedJson tools = OrderedJson::parse(use.tools);
    OrderedJson wanted = OrderedJson::array();
    for (size_t i = 0; i < tools.size(); ++i) {
      const bool any = use.only.empty();
      if (!any && (!wanted.empty() || tools[i]["function"]["name"] != OrderedJson(use.only))) {
        continue;
      }
      wanted.push_back(std::move(tools[i]));
      AddPart(i);
      if (auto error = CheckObject(wanted.back())) return error;
    }
    tools = std::move(wanted);
    const bool many = use.many && use.only.empty();
    if (!many) split_.calls_max = 1;
    SetGrammar(text::CallGrammar(*split_.tools, tools, {.many = many, .first = split_.first_call},
                                 Special()));
    return std::nullopt;
  }

  void NumberCalls() {
    const std::string source = model_.chat_template ? model_.chat_template->tool_source() : "";
    if (text::CallIdsOf(source, model_.tool_format) != text::CallIds::kNumbered) return;
    split_.first_call = WithCallIds(request_.conversation.messages, text::CallIds::kNumbered).calls;
  }

  void AddPart(size_t tool) {
    request_.options.constraint_parts.push_back(fmt::format("tools[{}].function.parameters", tool));
  }

  // Arguments that were constrained to something else would be no call.
  std::optional<ApiError> CheckObject(const OrderedJson& tool) const {
    const OrderedJson parameters = tool["function"].value("parameters", OrderedJson());
    const OrderedJson type =
        parameters.is_object() ? parameters.value("type", OrderedJson()) : OrderedJson();
    const auto object = OrderedJson("object");
    const bool sound = type.is_null() || type == object ||
                       (type.is_array() && std::ranges::find(type, object) != type.end());
    if (sound) return std::nullopt;
    return BadField("tools",
                    fmt::format("{}.type must be \"object\", because arguments are one; got {}",
                                request_.options.constraint_parts.back(), Describe(Json(type))));
  }

  void SetGrammar(std::string grammar) {
    params().grammar = std::move(grammar);
    request_.options.constraint_field = "tools";
  }

  // Values in tags have no types of their own, and values of Python may have no names. Without a
  // mark, an object that has a name is a call if there is such a tool.
  void KeepSchemas() {
    if (split_.tools == nullptr) return;
    const CallSyntax syntax = split_.tools->syntax;
    if (syntax != CallSyntax::kJson && syntax != CallSyntax::kNameThenJson) {
      split_.schemas = request_.tools.tools;
    } else if (split_.tools->section_begin.empty()) {
      OrderedJson names = OrderedJson::array();
      for (const OrderedJson& tool : OrderedJson::parse(request_.tools.tools)) {
        names.push_back({{"name", tool["function"]["name"]}});
      }
      split_.schemas = names.dump();
    }
  }

  // A model that reasons does so before the part that is constrained.
  std::optional<ApiError> ReasonFirst() {
    if (request_.thinking_budget && split_.reasoning == nullptr) {
      return BadField("thinking_token_budget",
                      "thinking_token_budget is for models that reason; this one is not known to");
    }
    if (split_.reasoning == nullptr) return std::nullopt;
    std::string& grammar = params().grammar;
    if (grammar.empty() && !request_.thinking_budget) return std::nullopt;
    OrderedJson reasoned = {{"begin", std::string(split_.reasoning->begin)},
                            {"end", std::string(split_.reasoning->end)},
                            {"begun", split_.begins_in_reasoning},
                            {"grammar", grammar}};
    const auto special = Special();
    if (const auto id = special(split_.reasoning->begin)) reasoned["begin_id"] = *id;
    if (const auto id = special(split_.reasoning->end)) reasoned["end_id"] = *id;
    if (request_.thinking_budget) reasoned["budget"] = *request_.thinking_budget;
    if (grammar.empty()) request_.options.constraint_field = "thinking_token_budget";
    grammar = GrammarOf(GrammarKind::kReasoned, reasoned.dump());
    return std::nullopt;
  }

  const ServedModel& model_;
  const std::string_view prompt_;
  ChatRequest& request_;
  AnswerSplit& split_;
};

}  // namespace

std::optional<ApiError> PrepareAnswer(const ServedModel& model, std::string_view prompt,
                                      ChatRequest& request, AnswerSplit& split) {
  auto error = Preparation(model, prompt, request, split).Run();
  if (error) return error;
  const SamplingParams& params = request.options.params;
  const std::string& field = request.options.constraint_field;
  if (!params.grammar.empty() && params.ignore_eos) {
    return BadField("ignore_eos",
                    fmt::format("ignore_eos does not go with {}, which constrains the "
                                "output",
                                field));
  }
  if (!params.grammar.empty() && params.beam_search) {
    return BadField("use_beam_search", fmt::format("use_beam_search does not go with {}, which "
                                                   "constrains the output",
                                                   field));
  }
  const Status sound = params.grammar.empty() ? OkStatus() : CheckGrammar(params.grammar);
  if (!sound.ok()) return BadField(field, fmt::format("{}: {}", field, sound.message()));
  return std::nullopt;
}

}  // namespace millrace::serve
