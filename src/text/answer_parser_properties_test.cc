// Answers of every format, whole, damaged and cut off, in every split.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "text/parsed_answer.h"

namespace millrace::text {
namespace {

// Answers of every format that are put together from content and calls.
class MadeAnswers {
 public:
  explicit MadeAnswers(uint64_t seed) : rng_(seed) {}

  struct Made {
    std::string text;
    Whole expected;
  };

  Made Next(const ToolFormat& format) {
    Made made;
    const bool at_start = format.section_begin.empty();
    if (!at_start && Chance()) made.text = made.expected.content = Words();
    std::vector<OrderedJson> all;
    for (int64_t k = rng_.Between(1, 3); k > 0; --k) {
      const std::string name = Chance() ? "f" : "get.it_2";
      all.push_back({{"name", name}, {"arguments", Arguments()}});
      made.expected.calls.push_back({.name = name, .arguments = all.back()["arguments"].dump()});
    }
    made.expected.whole_calls = true;
    if (!made.text.empty() && Chance()) made.text += "\n\n";
    made.text += Written(format, all);
    if (!at_start && Chance()) {
      const std::string after = Words();
      made.text += "\n" + after;
      made.expected.content += after;
    }
    return made;
  }

  std::vector<std::string_view> Pieces(std::string_view text) {
    std::vector<std::string_view> pieces;
    while (!text.empty()) {
      const auto size = static_cast<size_t>(rng_.Between(1, Chance() ? 3 : 30));
      pieces.push_back(text.substr(0, size));
      text.remove_prefix(std::min(size, text.size()));
    }
    return pieces;
  }

  std::string Damaged(std::string text) {
    for (int64_t k = rng_.Between(1, 3); k > 0 && !text.empty(); --k) {
      const auto at = static_cast<size_t>(rng_.Between(0, std::ssize(text) - 1));
      const auto size = static_cast<size_t>(rng_.Between(1, 10));
      switch (rng_.Between(0, 3)) {
        case 0: text.erase(at, size); break;
        case 1: text.insert(at, text.substr(at, size)); break;
        case 2: text.resize(at); break;
        default: text[at] = "'\"{}[]<>,x"[rng_.Between(0, 9)];
      }
    }
    return text;
  }

  bool Chance() { return rng_.Between(0, 1) == 0; }

 private:
  std::string Words() {
    std::string text = "A";
    for (int64_t k = rng_.Between(0, 5); k > 0; --k) {
      text += Of(" word", " 3 < 4", "\n- x", " {\"a\": 1}", " </b>", " [1]", " ```c\nx\n```", " é");
    }
    return text;
  }

  template <typename... Texts>
  std::string Of(Texts... texts) {
    const std::vector<std::string> all = {texts...};
    return all[static_cast<size_t>(rng_.Between(0, std::ssize(all) - 1))];
  }

  OrderedJson Arguments() {
    OrderedJson arguments = OrderedJson::object();
    if (Chance()) {
      arguments["s"] =
          Of("x", "1", "true", "null", " two  words ", "é😀", "a\nb\n\nc", "{\"q\": [1, \"}\"]}",
             "it's \"quoted\" \\n", "</tool_call>", "[ARGS]", "<think>", "", "\t<|tool_call_end|>",
             "</parameter> in", "</arg_value> in", "']");
    }
    if (Chance()) arguments["i"] = rng_.Between(-5, 1'000'000'000'000);
    if (Chance()) arguments["n"] = 0.5;
    if (Chance()) arguments["b"] = Chance();
    if (Chance()) arguments["a"] = {1, "two]", nullptr, {{"x", {}}}};
    if (Chance()) arguments["o"] = {{"k", "v}"}, {"l", OrderedJson::array()}};
    return arguments;
  }

  static std::string Python(const OrderedJson& value) {
    if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
    if (value.is_null()) return "None";
    std::string text;
    if (value.is_array()) {
      for (const OrderedJson& one : value) text += (text.empty() ? "" : ", ") + Python(one);
      return "[" + text + "]";
    }
    if (value.is_object()) {
      for (const auto& [key, one] : value.items()) {
        text += (text.empty() ? "'" : ", '") + key + "': " + Python(one);
      }
      return "{" + text + "}";
    }
    return value.dump();
  }

  std::string Written(const ToolFormat& f, const std::vector<OrderedJson>& calls) {
    std::string list, all;
    int number = 0;
    for (const OrderedJson& call : calls) {
      const auto name = call["name"].get<std::string>();
      const OrderedJson& arguments = call["arguments"];
      OrderedJson object = {{"name", name}};
      object[f.arguments_key] = arguments;
      std::string one = object.dump();
      if (f.syntax == CallSyntax::kPython) {
        one.clear();
        for (const auto& [key, value] : arguments.items()) {
          one += (one.empty() ? "" : ", ") + key + "=" + Python(value);
        }
        one = name + "(" + one + ")";
      }
      list += (list.empty() ? "" : std::string(f.separator)) + one;
      if (f.name == "hermes") all += "<tool_call>\n" + one + "\n</tool_call>" + Of("", "\n");
      if (f.name == "mistral") all += "[TOOL_CALLS]" + name + "[ARGS]" + arguments.dump();
      if (f.name == "kimi_k2") {
        all += "<|tool_call_begin|>functions." + name + ":" + std::to_string(number++) +
               "<|tool_call_argument_begin|>" + arguments.dump() + "<|tool_call_end|>";
      }
      if (f.name == "deepseek_v3" && calls.size() % 2 == 0) {
        all += "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments.dump() +
               "<｜tool▁call▁end｜>";
      } else if (f.name == "deepseek_v3") {
        all += "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" +
               arguments.dump() + "\n```<｜tool▁call▁end｜>\n";
      }
      if (f.name == "qwen3_coder" || f.name == "glm45") all += Tagged(f, name, arguments);
    }
    if (f.name == "kimi_k2")
      return "<|tool_calls_section_begin|>" + all + "<|tool_calls_section_end|>";
    if (f.name == "deepseek_v3") return "<｜tool▁calls▁begin｜>" + all + "<｜tool▁calls▁end｜>";
    if (!all.empty() && (f.name != "mistral" || Chance())) return all;
    if (f.name == "llama3_json") return list;
    return std::string(f.section_begin) + "[" + list + "]" + std::string(f.section_end);
  }

  static std::string Tagged(const ToolFormat& f, const std::string& name,
                            const OrderedJson& arguments) {
    const bool keys = f.name == "glm45";
    std::string text = keys ? name + "\n" : "\n<function=" + name + ">\n";
    for (const auto& [key, value] : arguments.items()) {
      const std::string written = value.is_string() ? value.get<std::string>() : value.dump();
      text += keys ? "<arg_key>" + key + "</arg_key>\n<arg_value>" + written + "</arg_value>\n"
                   : "<parameter=" + key + ">\n" + written + "\n</parameter>\n";
    }
    return "<tool_call>" + text + (keys ? "</tool_call>\n" : "</function>\n</tool_call>\n");
  }

  Rng rng_;
};

AnswerParserOptions OfMade(const ToolFormat& format) {
  AnswerParserOptions options;
  options.tools = &format;
  const OrderedJson parameters = OrderedJson::parse(R"({"properties": {"s": {"type": "string"},
      "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
      "a": {"type": "array"}, "o": {"type": "object"}}})");
  for (const char* name : {"f", "get.it_2"}) {
    options.schemas.push_back({{"name", name}, {"parameters", parameters}});
  }
  return options;
}

// Damage may cut a character, which the text of a model does not.
bool AreObjects(const std::vector<ToolCall>& calls) {
  return std::ranges::all_of(calls, [](const ToolCall& call) {
    std::string ascii = call.arguments;
    for (char& c : ascii) {
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    }
    return OrderedJson::parse(ascii, nullptr, false).is_object();
  });
}

TEST(AnswerParserProperties, CallsOfEveryFormatParseInEverySplit) {
  for (const ToolFormat& format : ToolFormats()) {
    MadeAnswers answers(7);
    const AnswerParserOptions options = OfMade(format);
    for (int i = 0; i < 25; ++i) {
      const auto [text, expected] = answers.Next(format);
      const Whole whole = Parse(options, text);
      ASSERT_EQ(whole.content, expected.content) << format.name << ": " << text;
      ASSERT_EQ(whole.calls.size(), expected.calls.size()) << format.name << ": " << text;
      ASSERT_TRUE(whole.whole_calls) << format.name << ": " << text;
      for (size_t k = 0; k < whole.calls.size(); ++k) {
        ASSERT_EQ(whole.calls[k].name, expected.calls[k].name);
        ASSERT_EQ(OrderedJson::parse(whole.calls[k].arguments, nullptr, false),
                  OrderedJson::parse(expected.calls[k].arguments))
            << format.name << ": " << text;
      }
      for (size_t at = 0; at <= text.size(); ++at) {
        Collector two(options);
        two.Push(std::string_view(text).substr(0, at));
        two.Push(std::string_view(text).substr(at));
        ASSERT_EQ(two.Finish().Text(), whole.Text()) << format.name << " at " << at << ": " << text;
      }
      Collector tokens(options);
      for (const std::string_view piece : answers.Pieces(text)) tokens.Push(piece);
      ASSERT_EQ(tokens.Finish().Text(), whole.Text()) << format.name << ": " << text;
    }
  }
}

// A text without marks, white space and the brackets of an empty list.
std::string Bare(std::string text, const ToolFormat& format) {
  for (const std::string_view mark : {format.section_begin, format.call_begin, format.call_end,
                                      format.section_end, format.stray_end}) {
    if (mark.empty()) continue;
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;)
      text.erase(at, mark.size());
  }
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
  for (size_t at = 0; (at = text.find("[]", at)) != std::string::npos;) text.erase(at, 2);
  return text;
}

// Calls parse, or the text is content, also of texts that are damaged or cut off.
TEST(AnswerParserProperties, DamagedTextsAreCallsOrContent) {
  for (const ToolFormat& format : ToolFormats()) {
    MadeAnswers answers(8);
    const AnswerParserOptions options = OfMade(format);
    for (int i = 0; i < 1000; ++i) {
      const std::string text = answers.Damaged(answers.Next(format).text);
      for (const bool cut : {false, true}) {
        const Whole whole = Parse(options, text, cut);
        Collector pieces(options);
        for (const std::string_view piece : answers.Pieces(text)) pieces.Push(piece);
        ASSERT_EQ(pieces.Finish(cut).Text(), whole.Text()) << format.name << ": " << text;
        if (whole.whole_calls) {
          ASSERT_TRUE(AreObjects(whole.calls)) << format.name << ": " << text;
        }
        if (whole.calls.empty() && !cut) {
          ASSERT_EQ(Bare(text, format), Bare(whole.content, format)) << format.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::text
