#include "serve/answer/answer_split.h"

namespace millrace::serve {

text::AnswerParserOptions AnswerSplit::ParserOptions() const {
  text::AnswerParserOptions options;
  options.tools = tools;
  options.reasoning = reasoning;
  options.begins_in_reasoning = begins_in_reasoning;
  options.calls_only = calls_only;
  options.calls_max = calls_max;
  if (!schemas.empty()) options.schemas = text::OrderedJson::parse(schemas, nullptr, false);
  return options;
}

Json ToJson(const AnswerSplit& split) {
  Json json = {{"tools", split.tools == nullptr ? "" : split.tools->name},
               {"reasoning", split.reasoning == nullptr ? "" : split.reasoning->name},
               {"begins_in_reasoning", split.begins_in_reasoning},
               {"hide_reasoning", split.hide_reasoning},
               {"calls_max", split.calls_max},
               {"schemas", split.schemas}};
  // Older records lack these.
  if (split.first_call > 0) json["first_call"] = split.first_call;
  if (split.calls_only) json["calls_only"] = true;
  return json;
}

AnswerSplit SplitFromJson(const Json& json) {
  AnswerSplit split;
  split.tools = text::FindToolFormat(json.at("tools").get<std::string>());
  split.reasoning = text::FindReasoningFormat(json.at("reasoning").get<std::string>());
  split.begins_in_reasoning = json.at("begins_in_reasoning").get<bool>();
  split.hide_reasoning = json.at("hide_reasoning").get<bool>();
  split.calls_max = json.at("calls_max").get<int>();
  split.schemas = json.at("schemas").get<std::string>();
  split.first_call = json.value("first_call", 0);
  split.calls_only = json.value("calls_only", false);
  return split;
}

}  // namespace millrace::serve
