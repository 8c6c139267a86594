#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/call_syntax.h"
#include "text/python_literal.h"

namespace millrace::text {
namespace {

std::string ValueOf(std::string_view text) {
  const auto value = ParsePythonValue(text);
  if (value) {
    EXPECT_TRUE(OrderedJson::accept(*value)) << *value;
  }
  return value.value_or("none");
}

TEST(PythonValues, Strings) {
  const struct {
    const char* python;
    const char* json;
  } cases[] = {
      {R"("caf\u00e9 \x41")", "\"café A\""},
      {R"('\n\r\t\a\b\f\v\\\'\"')", R"("\n\r\t\u0007\b\f\u000b\\'\"")"},
      {R"('\101\60\0')", R"("A0\u0000")"},
      {R"('\1018')", "\"A8\""},
      {R"('\U0001F600')", "\"😀\""},
      {R"('\ud83d\ude00')", "\"😀\""},
      {R"('\ud83d')", "\"\xEF\xBF\xBD\""},
      {R"('\ude00x')", "\"\xEF\xBF\xBDx\""},
      {R"('\ud83d\n')", "\"\xEF\xBF\xBD\\n\""},
      {"'one\\\ntwo'", "\"onetwo\""},
      {"'one\ntwo'", R"("one\ntwo")"},
      {R"(r'\n\x41\'')", R"("\\n\\x41\\'")"},
      {R"(R"a")", "\"a\""},
      {R"(u'a')", "\"a\""},
      {R"(b'caf\xc3\xa9\u0041')", R"("café\\u0041")"},
      {R"(rb'\x41')", R"("\\x41")"},
      {R"(b'\xff')", "\"\xEF\xBF\xBD\""},
      {R"('a' "b" r'\c')", R"("ab\\c")"},
      {R"('''it's ''quoted'' ''')", R"("it's ''quoted'' ")"},
      {R"("""a "b" c""")", R"("a \"b\" c")"},
      {R"('')", "\"\""},
      {R"("""""")", "\"\""},
      {R"('\d\.\ ')", R"("\\d\\.\\ ")"},
      {R"('C:\xyz')", R"("C:\\xyz")"},
      {R"('\u12')", R"("\\u12")"},
      {R"('\U99999999')", "\"\xEF\xBF\xBD\""},
      {R"('\N{DASH}')", R"("\\N{DASH}")"},
      {"'\xFF'", "\"\xEF\xBF\xBD\""},
      {R"(f'{x}')", "none"},
      {R"('open)", "none"},
      {R"('open\')", "none"},
      {R"("""open")", "none"},
      {"'\\", "none"},
  };
  for (const auto& c : cases) EXPECT_EQ(ValueOf(c.python), c.json) << c.python;
}

TEST(PythonValues, Numbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"00", "0"},
      {"-1", "-1"},
      {"+1", "1"},
      {"- 2", "-2"},
      {"--2", "2"},
      {"1_000", "1000"},
      {"0x1F", "31"},
      {"0o17", "15"},
      {"0b101", "5"},
      {"-0xff", "-255"},
      {"1e5", "1e5"},
      {"1E+5", "1E+5"},
      {"1.", "1.0"},
      {".5", "0.5"},
      {"-.5", "-0.5"},
      {"1.e3", "1.0e3"},
      {"01.5", "1.5"},
      {"00.5", "0.5"},
      {"0.10", "0.10"},
      {"02134", "\"02134\""},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"0xFFFFFFFFFFFFFFFFFFFF", "1208925819614629174706175"},
      {"1e999", "none"},
      {"1j", "none"},
      {"0x", "none"},
      {"1x", "none"},
      {"1.2.3", "none"},
      {"inf", "none"},
      {"nan", "none"},
      {"-", "none"},
      {"2*3", "none"}};
  for (const auto& [python, json] : cases) EXPECT_EQ(ValueOf(python), json) << python;
}

TEST(PythonValues, Containers) {
  const std::pair<const char*, const char*> cases[] = {
      {"True", "true"},
      {"None", "null"},
      {"false", "false"},
      {"(1, 'a')", "[1,\"a\"]"},
      {"(1,)", "[1]"},
      {"(1)", "1"},
      {"()", "[]"},
      {"[1, 2,]", "[1,2]"},
      {"[]", "[]"},
      {"{1, 2}", "[1,2]"},
      {"{}", "{}"},
      {"{'a': {'b': [(), None]},}", "{\"a\":{\"b\":[[],null]}}"},
      {"{1: 'x', None: 2, True: 3}", "{\"1\":\"x\",\"null\":2,\"true\":3}"},
      {"{'a': 1, 'a': 2}", "{\"a\":2}"},
      {"{'a' 1}", "none"},
      {"{[1]: 2}", "none"},
      {"{'a': 1, 2}", "none"},
      {"[1 2]", "none"},
      {"[,]", "none"},
      {"name", "none"},
      {"", "none"}};
  for (const auto& [python, json] : cases) EXPECT_EQ(ValueOf(python), json) << python;
  EXPECT_EQ(ValueOf(std::string(1000, '[')), "none");
  EXPECT_EQ(ValueOf(std::string(60, '[') + std::string(60, ']')),
            std::string(60, '[') + std::string(60, ']'));
}

std::string CallsOf(std::string_view text) {
  const OrderedJson tools =
      OrderedJson::parse(R"([{"name": "f", "parameters": {"properties": {"z": {}, "a": {}}}}])");
  const ParsedCalls parsed = ParsePythonCalls(text, tools);
  std::string all = parsed.whole ? "" : "not whole ";
  for (const ToolCall& call : parsed.calls) all += call.name + call.arguments;
  if (parsed.open) all += " open " + parsed.open->name + parsed.open->arguments;
  return all;
}

TEST(PythonCalls, Lists) {
  EXPECT_EQ(CallsOf("[f(a=1), a.b.g(s='x',),]"), "f{\"a\":1}a.b.g{\"s\":\"x\"}");
  EXPECT_EQ(CallsOf(" [ f ( a = 1 , b=[2] ) ] "), "f{\"a\":1,\"b\":[2]}");
  EXPECT_EQ(CallsOf("f()"), "f{}");
  EXPECT_EQ(CallsOf("[f('x', 2)]"), "f{\"z\":\"x\",\"a\":2}") << "named by the schema";
  EXPECT_EQ(CallsOf("[f('x', a=2)]"), "f{\"z\":\"x\",\"a\":2}");
  EXPECT_EQ(CallsOf("[f(größe=1)]"), "f{\"größe\":1}");
  EXPECT_EQ(CallsOf("[f(1, 2, 3)]"), "not whole ") << "it has no third parameter";
  EXPECT_EQ(CallsOf("[g('x')]"), "not whole ");
  EXPECT_EQ(CallsOf("[f(a=1) g()]"), "not whole f{\"a\":1}");
  EXPECT_EQ(CallsOf("[f(a=)]"), "not whole ");
  EXPECT_EQ(CallsOf("[]"), "not whole ");
  EXPECT_EQ(CallsOf("[f(a=1"), "not whole  open f{");
  EXPECT_EQ(CallsOf("[f(), g(a=1, b='x"), "not whole f{} open g{\"a\":1");
}

// Where a list ends is found one character after the other.
TEST(PythonCalls, EndsOfLists) {
  const auto end_of = [](std::string_view text) {
    PythonListEnd end;
    for (size_t i = 0; i < text.size(); ++i) {
      if (end.Take(text[i])) return i + 1;
    }
    return size_t{0};
  };
  for (const std::string list :
       {R"([f(a="]", b=']')])", R"([f(a="")])", R"([f(a='', b="", c="]")])", R"([f(a="\"]")])",
        R"([f(a="""]"]""]""")])", R"([f(a='''it's]''', b=[])])", R"(["]" ']'])", R"([""']'])",
        R"([f(a="""x\"""]""")])"}) {
    EXPECT_EQ(end_of(list + " ]"), list.size()) << list;
  }
  EXPECT_EQ(end_of("[f(a='it's')]"), 0u);
}

TEST(PythonCalls, RandomTextsAreCallsOrNot) {
  Rng rng(3);
  const std::string_view alphabet = "[]{}(),:='\"\\ \nrbuxUN019.-_efTalsNone\xC3\xA9";
  for (int i = 0; i < 20000; ++i) {
    std::string text = "[f(a=";
    for (int64_t k = rng.Between(0, 24); k > 0; --k) {
      text += alphabet[static_cast<size_t>(rng.Between(0, std::ssize(alphabet) - 1))];
    }
    text += ")]";
    for (const ToolCall& call : ParsePythonCalls(text, {}).calls) {
      ASSERT_TRUE(OrderedJson::parse(call.arguments, nullptr, false).is_object()) << text;
    }
  }
}

}  // namespace
}  // namespace millrace::text
