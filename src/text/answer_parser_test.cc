#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/parsed_answer.h"

namespace millrace::text {
namespace {

AnswerParserOptions Of(std::string_view tools, std::string_view reasoning = "") {
  AnswerParserOptions options;
  options.tools = FindToolFormat(tools);
  options.reasoning = FindReasoningFormat(reasoning);
  options.schemas =
      OrderedJson::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
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
    // Ends without a beginning, and beginnings without a call.
    {"hermes", "", false, "Hello.\n</tool_call>", "reasoning: \ncontent: Hello.\n\n"},
    {"hermes", "", false, "</tool_call>", "reasoning: \ncontent: \n"},
    {"hermes", "", false, "It ends with `</tool_call>`, see?",
     "reasoning: \ncontent: It ends with `</tool_call>`, see?\n"},
    {"hermes", "", false, "Sure.\n<tool_call>", "reasoning: \ncontent: Sure.\n\n"},
    {"hermes", "", false, "Sure.<tool_call>\n</tool_call> Done.",
     "reasoning: \ncontent: Sure. Done.\n"},
    {"hermes", "", false, "a <tool", "reasoning: \ncontent: a <tool\n"},
    {"hermes", "", false, "<tool_call>none</tool_call> and </tool_call>",
     "reasoning: \ncontent: <tool_call>none</tool_call> and \n"},
    {"kimi_k2", "", false, "No.<|tool_calls_section_end|>", "reasoning: \ncontent: No.\n"},
    {"kimi_k2", "", false,
     "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>",
     "reasoning: \ncontent: \nf {}\n"},
    {"kimi_k2", "", false,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "reasoning: \ncontent: \nf {}\n"},
    {"kimi_k2", "", false, "<|tool_calls_section_begin|><|tool_calls_section_end|>x",
     "reasoning: \ncontent: x\n"},
    {"mistral", "", false, "[TOOL_CALLS]f{\"n\": 1}[/TOOL_CALLS]",
     "reasoning: \ncontent: \nf {\"n\": 1}\n"},
    {"mistral", "", false, "x[/TOOL_CALLS]", "reasoning: \ncontent: x\n"},
    {"mistral", "", false, "[TOOL_CALLS]see the manual",
     "reasoning: \ncontent: [TOOL_CALLS]see the manual\n"},
    {"mistral", "", false, "[TOOL_CALLS][]", "reasoning: \ncontent: \n"},
    {"hermes", "think", false, "So it is.</think>\n\nYes.",
     "reasoning: \ncontent: So it is.\n\nYes.\n"},
    {"hermes", "think", false, "</think>\n\nYes.", "reasoning: \ncontent: Yes.\n"},
    {"hermes", "think", false, "Use <think> and </think> here.",
     "reasoning: \ncontent: Use <think> and </think> here.\n"},
    {"hermes", "think", true, "<think>\nhm</think>Yes.", "reasoning: hm\ncontent: Yes.\n"},
    {"llama3_json", "", false, "Sure.<|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
     "reasoning: \ncontent: Sure.\nf {}\n"},
    // JSON that is no call.
    {"llama3_json", "", false, "{\"name\": \"Ada\", \"age\": 36}",
     "reasoning: \ncontent: {\"name\": \"Ada\", \"age\": 36}\n"},
    {"llama3_json", "", false, "{\"name\": \"f\"}", "reasoning: \ncontent: \nf {}\n"},
    {"json", "", false, " [{\"a\": 1}, 2] ", "reasoning: \ncontent:  [{\"a\": 1}, 2] \n"},
    {"hermes", "", false, "<tool_call>{'name': 'f'}</tool_call>",
     "reasoning: \ncontent: <tool_call>{'name': 'f'}</tool_call>\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "reasoning: \ncontent: <tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": {'s': 1}}</tool_call>",
     "reasoning: \ncontent: <tool_call>{\"name\": \"f\", \"arguments\": {'s': 1}}</tool_call>\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
     "reasoning: \ncontent: \nf {}\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
     "reasoning: \ncontent: <tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>\n"},
    // A call whose arguments turn out to be no JSON stays, as it was written, and is not whole.
    {"hermes", "", false,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 'x'}}\n</tool_call> Done.",
     "reasoning: \ncontent: Done.\nf {\"s\": 'x'}}\n\nbroken\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": [1}}</tool_call>",
     "reasoning: \ncontent: \nf {\"s\": [1}}\nbroken\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one",
     "reasoning: \ncontent: \nf {\"s\": \"one\nbroken\n"},
    // What is around whole arguments does not matter.
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}}}\n</tool_call>",
     "reasoning: \ncontent: \nf {\"n\": 1}\n"},
    {"hermes", "", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}",
     "reasoning: \ncontent: \nf {\"n\": 1}\n"},
    {"hermes", "", false,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one\ntwo \\d\"}}</tool_call>, and so "
     "on",
     "reasoning: \ncontent: , and so on\nf {\"s\": \"one\\ntwo \\\\d\"}\n"},
    {"qwen3_coder", "", false,
     "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
     "reasoning: \ncontent: \nf {\"s\":\"x\"}\n"},
    {"qwen3_coder", "", false, "<function=f> is a tag",
     "reasoning: \ncontent: <function=f> is a tag\n"},
    {"qwen3_coder", "", false,
     "<tool_call>\n<function=f>\n<parameter=s>\na </tool_call> b </parameter> c\n</parameter>\n"
     "</function>\n</tool_call>",
     "reasoning: \ncontent: \nf {\"s\":\"a </tool_call> b </parameter> c\"}\n"},
    {"glm45", "", false, "The <tool_call> tag begins one.",
     "reasoning: \ncontent: The <tool_call> tag begins one.\n"},
    {"glm45", "", false,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value></tool_call></arg_value>\n</tool_call>",
     "reasoning: \ncontent: \nf {\"s\":\"</tool_call>\"}\n"},
    {"lfm2", "", false, "<|tool_call_start|>[f(s='<|tool_call_end|>')]<|tool_call_end|>",
     "reasoning: \ncontent: \nf {\"s\":\"<|tool_call_end|>\"}\n"},
    {"lfm2", "", false, "<|tool_call_start|>[f(s='it's')]<|tool_call_end|>x",
     "reasoning: \ncontent: <|tool_call_start|>[f(s='it's')]<|tool_call_end|>x\n"},
    {"pythonic", "", false, "[f(\"x\", n=0x1F)]",
     "reasoning: \ncontent: \nf {\"s\":\"x\",\"n\":31}\n"},
    {"deepseek_v3", "", false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>"
     "```sh\nls\n```",
     "reasoning: \ncontent: ```sh\nls\n```\nf {}\n"},
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

// Answers that a limit or a stop string ends, wherever it does.
TEST(AnswerParser, CutCalls) {
  const struct {
    const char* tools;
    const char* text;
    const char* expected;
  } cases[] = {
      {"hermes", "Sure.<tool_call>{\"na", "reasoning: \ncontent: Sure.\n"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"one ",
       "reasoning: \ncontent: \nf {\"s\": \"one \nbroken\n"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}",
       "reasoning: \ncontent: \nf {\"s\": 1}\n"},
      {"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f",
       "reasoning: \ncontent: \n"},
      {"mistral", "[TOOL_CALLS]f[ARGS]{\"s\"", "reasoning: \ncontent: \nf {\"s\"\nbroken\n"},
      {"qwen3_coder",
       "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nab",
       "reasoning: \ncontent: \nf {\"n\":1\nbroken\n"},
      {"qwen3_coder", "<tool_call>\n<func", "reasoning: \ncontent: \n"},
      {"glm45", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n",
       "reasoning: \ncontent: \nf {\"n\":1\nbroken\n"},
      {"lfm2", "<|tool_call_start|>[f(n=1), g(s='x",
       "reasoning: \ncontent: \nf {\"n\":1}\ng {\nbroken\n"},
      {"llama3_json", "{\"name\": \"f", "reasoning: \ncontent: {\"name\": \"f\n"},
      {"pythonic", "[f(n=1", "reasoning: \ncontent: \nf {\nbroken\n"},
      {"pythonic", "[other(n=1", "reasoning: \ncontent: [other(n=1\n"},
      {"json", "[{\"name\": \"f\", \"arguments\": {}}, {\"na", "reasoning: \ncontent: \nf {}\n"},
      {"deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n``",
       "reasoning: \ncontent: \n"},
      {"hermes", "<tool_call></tool_cal", "reasoning: \ncontent: \n"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Parse(Of(c.tools), c.text, true).Text(), c.expected) << c.tools << ": " << c.text;
  }
}

// Of an answer that is constrained to calls nothing is content.
TEST(AnswerParser, CutRequiredCalls) {
  for (const ToolFormat& format : ToolFormats()) {
    AnswerParserOptions options = Of(std::string(format.name));
    options.calls_only = true;
    const std::string begin =
        format.section_begin.empty() ? "[" : std::string(format.section_begin);
    for (size_t size = 1; size <= begin.size(); ++size) {
      EXPECT_EQ(Parse(options, begin.substr(0, size), true).Text(), "reasoning: \ncontent: \n")
          << format.name << " " << size;
    }
  }
  AnswerParserOptions options = Of("json");
  options.calls_only = true;
  EXPECT_EQ(Parse(options, "[{\"name\": \"f", true).Text(), "reasoning: \ncontent: \n");
}

TEST(AnswerParser, BlanksBeforeTheEndOfAName) {
  EXPECT_EQ(Parse(Of("kimi_k2"),
                  "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0 \n"
                  "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>")
                .Text(),
            "reasoning: \ncontent: \nf {}\n");
  EXPECT_EQ(Parse(Of("mistral"), "[TOOL_CALLS]f [ARGS]{}").Text(),
            "reasoning: \ncontent: \nf {}\n");
}

// What has come of the end is no part of the name.
TEST(AnswerParser, AnEndOfANameThatComesInPieces) {
  const std::string text =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f\r\r<｜tool▁sep｜>{\"a\": "
      "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  for (const ToolFormat& format : ToolFormats()) {
    if (format.name_end != "<｜tool▁sep｜>") continue;
    AnswerParserOptions options;
    options.tools = &format;
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      AnswerParser parser(options);
      std::string name;
      AnswerPieces pieces;
      for (size_t at = 0; at < text.size(); at += piece) {
        parser.Push(std::string_view(text).substr(at, piece), pieces);
      }
      parser.Finish(pieces);
      for (const ToolCallDelta& call : pieces.calls) name += call.name;
      EXPECT_EQ(name, "f") << format.name << ", pieces of " << piece;
      EXPECT_EQ(pieces.content, "");
    }
  }
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
