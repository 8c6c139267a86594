#include "serve/tool_use.h"

#include <fmt/format.h>

#include <utility>

#include "core/output_grammar.h"
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
    split_.begins_in_reasoning = split_.reasoning != nullptr &&
                                 request_.conversation.add_generation_prompt &&
                                 text::BeginsInReasoning(*split_.reasoning, prompt_);
    if (auto error = UseTools()) return error;
    return ReasonFirst();
  }

 private:
  SamplingParams& params() { return request_.options.params; }

  text::SpecialTokenId Special() const {
    return [this](std::string_view text) -> std::optional<TokenId> {
      const auto id = model_.tokenizer->IdOf(text);
      return id && model_.tokenizer->Token(*id).special ? id : std::nullopt;
    };
  }

  std::optional<ApiError> UseTools() {
    const ToolUse& use = request_.tools;
    if (use.tools.empty() || use.choice == ToolUse::Choice::kNone) return std::nullopt;
    if (use.choice == ToolUse::Choice::kRequired) return RequireCalls();
    split_.tools = model_.tool_format;
    if (!use.many) split_.calls_max = 1;
    KeepSchemas();
    if (split_.tools == nullptr || !use.any_strict || !params().grammar.empty())
      return std::nullopt;
    const OrderedJson tools = OrderedJson::parse(use.tools);
    if (auto grammar = text::FreeCallGrammar(*split_.tools, tools, Special())) {
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
    OrderedJson tools = OrderedJson::parse(use.tools);
    if (!use.only.empty()) {
      OrderedJson only = OrderedJson::array();
      for (OrderedJson& tool : tools) {
        if (only.empty() && tool["function"]["name"] == OrderedJson(use.only)) {
          only.push_back(std::move(tool));
        }
      }
      tools = std::move(only);
    }
    const bool many = use.many && use.only.empty();
    if (!many) split_.calls_max = 1;
    SetGrammar(text::CallGrammar(*split_.tools, tools, many, Special()));
    return std::nullopt;
  }

  void SetGrammar(std::string grammar) {
    params().grammar = std::move(grammar);
    request_.options.constraint_field = "tools";
  }

  // Values in tags have no types of their own.
  void KeepSchemas() {
    if (split_.tools == nullptr) return;
    const CallSyntax syntax = split_.tools->syntax;
    if (syntax == CallSyntax::kParameterTags || syntax == CallSyntax::kKeyValueTags) {
      split_.schemas = request_.tools.tools;
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
    return BadField("ignore_eos", "ignore_eos does not go with an output that is constrained");
  }
  const Status sound = params.grammar.empty() ? OkStatus() : CheckGrammar(params.grammar);
  if (!sound.ok()) return BadField(field, fmt::format("{}: {}", field, sound.message()));
  return std::nullopt;
}

}  // namespace millrace::serve
