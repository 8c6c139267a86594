#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace millrace::text {
namespace {

// Everything that an answer consists of; calls with their arguments put together.
struct Whole {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::string Text() const {
    std::string text = "reasoning: " + reasoning + "\ncontent: " + content + "\n";
    for (const ToolCall& call : calls) text += call.name + " " + call.arguments + "\n";
    return text;
  }
};

class Collector {
 public:
  explicit Collector(const AnswerParserOptions& options) : parser_(options) {}

  void Push(std::string_view text) {
    AnswerPieces pieces;
    parser_.Push(text, pieces);
    Add(pieces);
  }
  Whole Finish() {
    AnswerPieces pieces;
    parser_.Finish(pieces);
    Add(pieces);
    return whole_;
  }

 private:
  void Add(const AnswerPieces& pieces) {
    whole_.reasoning += pieces.reasoning;
    whole_.content += pieces.content;
    for (const ToolCallDelta& delta : pieces.calls) {
      const auto index = static_cast<size_t>(delta.index);
      if (index == whole_.calls.size()) {
        EXPECT_FALSE(delta.name.empty()) << "the first delta of a call has its name";
        whole_.calls.push_back({.name = delta.name, .arguments = {}});
      } else {
        EXPECT_TRUE(delta.name.empty());
      }
      ASSERT_LT(index, whole_.calls.size());
      whole_.calls[index].arguments += delta.arguments;
    }
  }

  AnswerParser parser_;
  Whole whole_;
};

Whole Parse(const AnswerParserOptions& options, std::string_view text) {
  Collector collector(options);
  collector.Push(text);
  return collector.Finish();
}

AnswerParserOptions Of(std::string_view tools, std::string_view reasoning = "") {
  AnswerParserOptions options;
  options.tools = FindToolFormat(tools);
  options.reasoning = FindReasoningFormat(reasoning);
  options.schemas = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}}])");
  return options;
}

struct Recorded {
  const char* tools;
  const char* reasoning;
  bool begins_in_reasoning;
  const char* text;
  const char* expected;
};

// Outputs in the forms of the families' chat templates.
const Recorded kRecorded[] = {
    {"hermes", "", false,
     "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a }</tool_call> b\"}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     "reasoning: \ncontent: Let me see.\nf {\"s\": \"a }</tool_call> b\"}\ng {}\n"},
    {"hermes", "think", false,
     "<think>\nIs it <tool_call>?\n</think>\n\n<tool_call>{\"arguments\": {\"n\": [1, {\"x\": "
     "2}]}, "
     "\"name\": \"f\"}</tool_call> Done.",
     "reasoning: Is it <tool_call>?\ncontent: Done.\nf {\"n\": [1, {\"x\": 2}]}\n"},
    {"hermes", "think", true, "So.\n</think>\n\nIt is 3 < 4.",
     "reasoning: So.\ncontent: It is 3 < 4.\n"},
    {"hermes", "", false, "The tag <tool_call> begins a call, {\"a\": 1} does not.",
     "reasoning: \ncontent: The tag <tool_call> begins a call, {\"a\": 1} does not.\n"},
    {"hermes", "", false, "<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}",
     "reasoning: \ncontent: \nf {\"n\": 1}\n"},
    {"llama3_json", "", false, "{\"name\": \"f\", \"parameters\": {\"s\": \"Zürich\"}}",
     "reasoning: \ncontent: \nf {\"s\": \"Zürich\"}\n"},
    {"llama3_json", "", false,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     "reasoning: \ncontent: \nf {}\ng {}\n"},
    {"llama3_json", "", false, "No call: {\"name\": \"f\"}",
     "reasoning: \ncontent: No call: {\"name\": \"f\"}\n"},
    {"llama3_json", "", false, "{\"answer\": 42}", "reasoning: \ncontent: {\"answer\": 42}\n"},
    {"mistral", "mistral", false,
     "[THINK]Hm.[/THINK][TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}, \"id\": "
     "\"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
     "reasoning: Hm.\ncontent: \nf {\"s\": \"x\"}\ng {}\n"},
    {"mistral", "", false,
     "Sure. [TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"s\": \"[ARGS]\"}[TOOL_CALLS]g[ARGS]{}",
     "reasoning: \ncontent: Sure.\nf {\"s\": \"[ARGS]\"}\ng {}\n"},
    {"deepseek_v3", "think", false,
     "<think></think>Now.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"a\"}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     "reasoning: \ncontent: Now.\nf {\"s\": \"a\"}\ng {}\n"},
    {"deepseek_v3", "", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "reasoning: \ncontent: \nf {\"n\": 1}\ng {}\n"},
    {"kimi_k2", "kimi", false,
     "◁think▷a◁/think▷b<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
     "<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "reasoning: a\ncontent: b\nf {\"n\": 1}\ng {}\n"},
    {"glm45", "think", false,
     "<think></think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n"
     "<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
     "reasoning: \ncontent: \nf {\"s\":\"12\",\"n\":12}\ng {}\n"},
    {"qwen3_coder", "", false,
     "I will.\n\n<tool_call>\n<function=f>\n<parameter=s>\nline 1\nline 2\n</parameter>\n"
     "<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
     "reasoning: \ncontent: I will.\nf {\"s\":\"line 1\\nline 2\",\"n\":7}\n"},
    {"granite", "", false, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}}]",
     "reasoning: \ncontent: \nf {\"s\": \"]\"}\n"},
    {"lfm2", "", false,
     "<|tool_call_start|>[f(s=\"a)]\", n=-1.5), g(x=[True, {'k': None}])]<|tool_call_end|>Wait.",
     "reasoning: \ncontent: Wait.\nf {\"s\":\"a)]\",\"n\":-1.5}\ng {\"x\":[true,{\"k\":null}]}\n"},
    {"pythonic", "", false, "[f(s='it\\'s'), g()]",
     "reasoning: \ncontent: \nf {\"s\":\"it's\"}\ng {}\n"},
    {"pythonic", "", false, "[1] is a list", "reasoning: \ncontent: [1] is a list\n"},
    {"json", "", false,
     "[{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}, {\"name\": \"g\", \"arguments\": {}}]",
     "reasoning: \ncontent: \nf {\"s\": \"a\"}\ng {}\n"},
};

TEST(AnswerParser, RecordedOutputs) {
  for (const Recorded& r : kRecorded) {
    AnswerParserOptions options = Of(r.tools, r.reasoning);
    options.begins_in_reasoning = r.begins_in_reasoning;
    EXPECT_EQ(Parse(options, r.text).Text(), r.expected) << r.tools << ": " << r.text;
  }
}

TEST(AnswerParser, DeltasOfEverySplitAreThoseOfTheWhole) {
  for (const Recorded& r : kRecorded) {
    AnswerParserOptions options = Of(r.tools, r.reasoning);
    options.begins_in_reasoning = r.begins_in_reasoning;
    const std::string_view text = r.text;
    for (size_t at = 0; at <= text.size(); ++at) {
      Collector collector(options);
      collector.Push(text.substr(0, at));
      collector.Push(text.substr(at));
      ASSERT_EQ(collector.Finish().Text(), r.expected) << r.tools << " split at " << at;
    }
    Collector one_by_one(options);
    for (const char c : text) one_by_one.Push({&c, 1});
    EXPECT_EQ(one_by_one.Finish().Text(), r.expected) << r.tools << ", one by one";
  }
}

// Also of texts that are cut off or damaged, as those of small models are.
TEST(AnswerParser, SplitsOfDamagedTextsDoNotMatterEither) {
  Rng rng(1);
  for (int i = 0; i < 3000; ++i) {
    const Recorded& r = kRecorded[static_cast<size_t>(rng.Between(0, std::ssize(kRecorded) - 1))];
    AnswerParserOptions options = Of(r.tools, r.reasoning);
    options.begins_in_reasoning = r.begins_in_reasoning;
    std::string text = r.text;
    for (int64_t k = rng.Between(0, 3); k > 0 && !text.empty(); --k) {
      const auto at = static_cast<size_t>(rng.Between(0, std::ssize(text) - 1));
      const auto size = static_cast<size_t>(rng.Between(1, 8));
      if (rng.Between(0, 1) == 0) {
        text.erase(at, size);
      } else {
        text.insert(at, text.substr(at, size));
      }
    }
    text = text.substr(0, static_cast<size_t>(rng.Between(0, std::ssize(text))));
    const std::string whole = Parse(options, text).Text();
    Collector pieces(options);
    std::string_view rest = text;
    while (!rest.empty()) {
      const auto size =
          std::min(rest.size(), static_cast<size_t>(rng.Between(1, rng.Between(0, 1) ? 3 : 40)));
      pieces.Push(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    ASSERT_EQ(pieces.Finish().Text(), whole) << r.tools << ": " << text;
  }
}

TEST(AnswerParser, ArgumentsComeAsTheyAreWritten) {
  AnswerParser parser(Of("hermes"));
  AnswerPieces pieces;
  parser.Push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"long", pieces);
  ASSERT_EQ(pieces.calls.size(), 1u);
  EXPECT_EQ(pieces.calls[0].name, "f");
  EXPECT_EQ(pieces.calls[0].arguments, "{\"s\": \"long");
  pieces = {};
  parser.Push(" text\"}", pieces);
  EXPECT_EQ(pieces.calls.at(0).arguments, " text\"}");
}

TEST(AnswerParser, WithoutToolsTheyAreText) {
  const std::string text = "<tool_call>{\"name\": \"f\"}</tool_call> ";
  EXPECT_EQ(Parse({}, text).content, text);
}

TEST(AnswerParser, CallsBeyondTheMostAreDropped) {
  AnswerParserOptions options = Of("json");
  options.calls_max = 1;
  const Whole whole = Parse(options,
                            "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
                            "\"arguments\": {}}]");
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].name, "f");
}

TEST(ToolFormats, AreFoundByTheMarksOfChatTemplates) {
  const auto name = [](std::string_view source) {
    const ToolFormat* format = ToolFormatOf(source);
    return format == nullptr ? "none" : std::string(format->name);
  };
  EXPECT_EQ(name("{{ '<tool_call>\\n' }}"), "hermes");
  EXPECT_EQ(name("<tool_call> ... <arg_key>"), "glm45");
  EXPECT_EQ(name("<tool_call> <function=x> <parameter=y>"), "qwen3_coder");
  EXPECT_EQ(name("{{ '[TOOL_CALLS]' }}"), "mistral");
  EXPECT_EQ(name("<|start_header_id|> {\"name\": f, \"parameters\": dictionary}"), "llama3_json");
  EXPECT_EQ(name("{{ message.content }}"), "none");
  ASSERT_NE(ReasoningFormatOf("{{ content.split('</think>') }}"), nullptr);
  EXPECT_TRUE(BeginsInReasoning(*FindReasoningFormat("think"), "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(BeginsInReasoning(*FindReasoningFormat("think"), "<think>\n\n</think>\n\n"));
}

}  // namespace
}  // namespace millrace::text
