#include "text/chat_template.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/source_path.h"
#include "text/golden_templates.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

TEST(ChatTemplate, RendersAsJinja2) {
  EXPECT_EQ(CompareGoldenTemplates(SourcePath("src/text/testdata/chat_templates")), 160);
}

std::unique_ptr<const ChatTemplate> Compile(const std::string& source) {
  TokenizerConfig config;
  config.bos_token = "<s>";
  config.chat_templates[kDefaultTemplateName] = source;
  return ChatTemplate::FromConfig(config, {}).value();
}

Result<std::string> Render(const std::string& source, std::string_view kwargs = {}) {
  return Compile(source)->Render({.messages_json = R"([{"role":"user","content":"Hi"}])",
                                  .kwargs_json = kwargs,
                                  .civil_seconds = kGoldenClock});
}

TEST(ChatTemplate, EveryLineEndIsTheSame) {
  EXPECT_EQ(Render("{% if true %}\r\na\r\n{% endif %}\rb{{ '\r\n' }}c").value(), "a\nb\nc");
}

TEST(ChatTemplate, ALoopOverToolsThatAreNotThereIsEmpty) {
  EXPECT_EQ(Render("<{% for tool in tools %}{{ tool }}{% endfor %}>").value(), "<>");
  EXPECT_EQ(Render("{{ tools is none }}").value(), "True");
  EXPECT_FALSE(Render("{% for x in messages[0].missing_and_none or none %}{% endfor %}").ok());
}

TEST(ChatTemplate, GivesVariablesAndKwargs) {
  EXPECT_EQ(Render("{{ bos_token }}{{ messages[0].content }}{{ x }}{{ tools is none }}",
                   R"({"x": 3, "messages": []})")
                .value(),
            "<s>Hi3True");
  EXPECT_EQ(Render("{% for m in nothing %}x{% endfor %}{{ nothing }}.").value(), ".");
  EXPECT_EQ(Render("{{ strftime_now('%d %B %Y') }}").value(), "02 January 2026");
  EXPECT_EQ(Render("{{ strftime_now('%a %-d %b %y %j %I:%M:%S %p %f%z %F %T %%') }}").value(),
            "Fri 2 Jan 26 002 03:04:05 AM 000000 2026-01-02 03:04:05 %");
  for (const char* format : {"%Q", "%c", "%_d", "%"}) {  // jiff knows some of them
    const Status refused = Render(fmt::format("{{{{ strftime_now('{}') }}}}", format)).status();
    EXPECT_NE(refused.message().find("strftime_now does not know the format"), std::string::npos)
        << refused.ToString();
  }
  EXPECT_EQ(Render("{{ x | tojson }}", R"({"x": {"b": "é<'", "a": [1.0, null, true]}})").value(),
            R"({"b": "é<'", "a": [1.0, null, true]})");
  EXPECT_EQ(Render("{{ {'a': [1]} | tojson(indent=2) }}").value(), "{\n  \"a\": [\n    1\n  ]\n}");
}

TEST(ChatTemplate, OperatorsWorkAsPythons) {
  EXPECT_EQ(
      Render("{{ 'a' + 'b' }}{{ 1 + 2 }}{{ 0.5 + 1 }}{{ 'ab' * 2 }}{{ 'n' ~ 1 ~ none }}").value(),
      "ab31.5ababn1None");
  EXPECT_EQ(Render("{% set l = [1] + [2, 3] %}{{ l | length }}{{ 2 in l }}{{ 'x' not in 'xyz' }}"
                   "{{ [1, 'a'] == [1, 'a'] }}{{ 'role' in messages[0] }}")
                .value(),
            "3TrueFalseTrueTrue");
  EXPECT_EQ(
      Render("{{ 'a-b-c'.replace('-', '+') }}{{ ', '.join(['x', 'y']) }}{{ [3,1]|sort|join }}")
          .value(),
      "a+b+cx, y13");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] = "ok\n{% for %}";
  Status status = ChatTemplate::FromConfig(config, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("line 2"), std::string::npos) << status.message();
  Result<std::string> raised = Render("{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(raised.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(raised.status().message().find("roles must alternate"), std::string::npos);
}

TEST(ChatTemplate, RefusesInputOfTheWrongType) {
  auto chat_template = Compile("{{ messages }}");
  for (const char* messages : {"", "{}", "[", "3", "[\"\xff\"]"}) {
    EXPECT_EQ(chat_template->Render({.messages_json = messages}).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(chat_template->Render({.messages_json = "[]", .tools_json = "{}"}).ok());
  EXPECT_FALSE(chat_template->Render({.messages_json = "[]", .kwargs_json = "[]"}).ok());
  EXPECT_FALSE(
      chat_template->Render({.messages_json = "[]", .template_name = "no such name"}).ok());
}

// Chains and rings of values that templates can build: nothing of them is freed, printed or
// compared by recursion. The text of each ends in a full stop.
TEST(ChatTemplate, ChainsOfNamespacesDoNoHarm) {
  for (const char* source :
       {"{% set ns = namespace() %}{% for i in range(60000) %}{% set n = namespace() %}"
        "{% set n.x = ns.x %}{% set ns.x = n %}{% endfor %}.",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns == ns.x }}{{ [ns] }}"
        "{{ {'a': ns} | string }}{{ {ns: 1}[ns] }}.",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(30000) %}{% set ns.x = ns.x[0:] %}"
        "{% endfor %}{{ ns.x }}.",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(30000) %}{% set ns.x = ns.x | reverse "
        "%}{% endfor %}{{ ns.x }}."}) {
    Result<std::string> text = Render(source);
    ASSERT_TRUE(text.ok()) << source << ": " << text.status().ToString();
    EXPECT_TRUE(text->ends_with('.')) << *text;
  }
}

// What a user writes never becomes a special token, however it is escaped.
TEST(ChatTemplate, SpecialTokensInMessagesStayText) {
  auto tokenizer = Tokenizer::Load(SourcePath("src/text/testdata/tokenizers/byte_level")).value();
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] =
      "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
  auto chat_template = ChatTemplate::FromConfig(config, tokenizer->special_tokens()).value();
  const TokenId end = tokenizer->IdOf("<|im_end|>").value();
  const EncodeOptions options{.add_special_tokens = false, .parse_special = true, .guarded = true};
  for (const char* messages : {R"([{"content":"a<|im_end|><|im_end|>b"}])",
                               R"([{"content":"a\u003c|im_end|>\u003c|im_end|\u003eb"}])"}) {
    ChatInput input{.messages_json = messages};
    std::vector<TokenId> ids =
        tokenizer->Encode(chat_template->Render(input).value(), options).value();
    EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
    EXPECT_EQ(tokenizer->Decode(ids, true), "a<|im_end|><|im_end|>b");
    input.guard_special_tokens = false;
    ids = tokenizer->Encode(chat_template->Render(input).value(), options).value();
    EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 3);
  }
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// A source whose syntax tree is `depth` deep, in one of the forms that the language has.
std::vector<std::string> DeepSources(int depth) {
  const auto wrap = [depth](const std::string& open, const std::string& inner,
                            const std::string& close) {
    return Repeat(open, depth) + inner + Repeat(close, depth);
  };
  std::vector<std::string> sources;
  for (const std::string& expression :
       {wrap("not ", "x", ""),     wrap("- ", "x", ""),          wrap("(", "x", ")"),
        wrap("[", "", "]"),        wrap("{1:", "x", "}"),        wrap("f(", "x", ")"),
        wrap("x[", "0", "]"),      wrap("x | f(", "x", ")"),     wrap("x if y else ", "x", ""),
        wrap("", "x", " if y"),    wrap("", "x", " ~ x"),        wrap("", "x", " + x"),
        wrap("", "1", " + 1"),     wrap("", "x", " * x"),        wrap("", "2", " ** 1"),
        wrap("", "x", " and x"),   wrap("", "x", " or x"),       wrap("", "x", ".a"),
        wrap("", "x", "[0]"),      wrap("", "x", "()"),          wrap("", "x", "[1:]"),
        wrap("", "x", " | f"),     wrap("", "x", " is defined"), wrap("", "x", " is not f"),
        wrap("x is f -", "1", ""), wrap("not - (", "x", ")"),    wrap("[(not ", "x", ")]")}) {
    sources.push_back("{{ " + expression + " }}");
    sources.push_back("{{ " + expression);  // parsed before the missing end is noticed
    sources.push_back("{% if " + expression + " %}{% endif %}");
    sources.push_back("{% set y = " + expression + " %}");
  }
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"{% if x %}", "{% endif %}"},
           {"{% if x %}{% else %}", "{% endif %}"},
           {"{% for i in x %}", "{% endfor %}"},
           {"{% for i in x %}{% else %}", "{% endfor %}"},
           {"{% macro f() %}", "{% endmacro %}"},
           {"{% call f() %}", "{% endcall %}"},
           {"{% filter upper %}", "{% endfilter %}"},
           {"{% set y %}", "{% endset %}"},
           {"{% set y | f(a=1) %}", "{% endset %}"},
           {"{% with y = 1 %}", "{% endwith %}"},
           {"{% autoescape true %}", "{% endautoescape %}"}}) {
    sources.push_back(wrap(open, "x", close));
    sources.push_back(wrap(open, "x", ""));
  }
  sources.push_back("{% if x %}" + wrap("{% elif x %}", "y", "") + "{% endif %}");
  sources.push_back("{% if x %}" + wrap("{% elif not x.y %}", "y", "") + "{% endif %}");
  sources.push_back("{% set " + wrap("(", "y", ")") + " = 1 %}");
  sources.push_back("{% for " + wrap("(", "y", ")") + " in x %}{% endfor %}");
  sources.push_back("{% set " + wrap("", "y", ".a") + " = 1 %}");
  sources.push_back("{% set y" + wrap(" | f", "", "") + " %}{% endset %}");
  sources.push_back("{% filter f" + wrap(" | f", "", "") + " %}{% endfilter %}");
  return sources;
}

Status CompileStatus(const std::string& source) {
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] = source;
  config.template_files[kDefaultTemplateName] = "/m/chat_template.jinja";
  return ChatTemplate::FromConfig(config, {}).status();
}

TEST(ChatTemplate, DeepNestingIsRefusedWithItsPlace) {
  for (const int depth : {1000, 25'000}) {
    for (const std::string& source : DeepSources(depth)) {
      const Status status = CompileStatus("line one\n" + source);
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << source.substr(0, 60);
      const std::string& message = status.message();
      EXPECT_NE(message.find("/m/chat_template.jinja"), std::string::npos) << message;
      EXPECT_NE(message.find("line 2, column "), std::string::npos) << message;
      EXPECT_TRUE(message.find("more than 64 ") != std::string::npos ||
                  message.find("more than 400 ") != std::string::npos)
          << message;
    }
  }
}

// What people write stays far below the limits, and what is just below them compiles.
TEST(ChatTemplate, NestingBelowTheLimitsIsTaken) {
  for (const std::string& source : DeepSources(30)) {
    const std::string message = CompileStatus(source).message();
    EXPECT_EQ(message.find("more than"), std::string::npos) << source << "\n" << message;
  }
  EXPECT_EQ(Render("{{ 'a'" + Repeat(" ~ 'b'", 390) + " }}").value(), "a" + Repeat("b", 390));
  EXPECT_EQ(Render("{{ " + Repeat("not ", 398) + "true }}").value(), "True");
  EXPECT_EQ(Render("{{ " + Repeat("(", 60) + "x" + Repeat(")", 60) + " }}", R"({"x":1})").value(),
            "1");
  EXPECT_EQ(Render("{% if x == 0 %}" + Repeat("{% elif x == 1 %}b", 380) + "{% else %}c{% endif %}",
                   R"({"x":2})")
                .value(),
            "c");
  // Siblings do not add up.
  EXPECT_EQ(Render("{{ [" + Repeat("not x, ", 5000) + "1] | length }}").value(), "5001");
  EXPECT_EQ(Render(Repeat("{% if x.y.z %}a{% endif %}", 5000), R"({"x":{"y":{"z":0}}})").value(),
            "");
}

TEST(ChatTemplate, ConstantsAreBoundedBeforeTheyAreFolded) {
  for (const char* expression :
       {"'a' * 100000000", "100000000 * 'a'", "('a' ~ 'b') * 9999999", "(1, 2) * 50000000",
        "'a' * (10 ** 8)", "'a' * 1000 * 1000 * 50", "x + 'a' * 9999999", "[x, 'a' * 9999999]",
        "(1 < 2 < 3 and 'a') * 9999999", "'a' * (10000 // 10 ** (-4))", "'a' * (1 / 0.00000001)",
        "f(y='a' * 9999999)", "x[:'a' * 9999999]"}) {
    const Status status = CompileStatus(fmt::format("{{{{ {} }}}}", expression));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expression;
    EXPECT_NE(
        status.message().find("constants take more than 4194304 bytes (chat template, line 1"),
        std::string::npos)
        << expression << ": " << status.message();
  }
  EXPECT_EQ(CompileStatus(Repeat("{{ 'a' * 1000000 }}", 5)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Render("{{ '-' * 80 }}{{ 3 * 1000000 * 1000 }}").value(),
            Repeat("-", 80) + "3000000000");
}

TEST(ChatTemplate, NamespacesSlicesAndMapsWorkAsPythons) {
  EXPECT_EQ(Render("{% set ns = namespace(a=1) %}{% for i in [2, 3] %}{% set ns.a = ns.a + i %}"
                   "{% endfor %}{{ ns.a }}{{ ns.b is defined }}{{ namespace({'x': 7}).x }}")
                .value(),
            "6False7");
  EXPECT_EQ(
      Render("{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{% set ns.c %}t{% endset %}"
             "{{ ns.a }}{{ ns.b }}{{ ns.c }}")
          .value(),
      "12t");
  EXPECT_EQ(Render("{% set ns = namespace(x='p') %}{% macro m(y) %}{% set ns.x = ns.x ~ y %}"
                   "{% endmacro %}{{ m('q') }}{{ ns.x }}")
                .value(),
            "pq");
  EXPECT_EQ(Render("{% set l = [0,1,2,3,4] %}{{ l[1:] }}{{ l[:-1] }}{{ l[::-1] }}{{ l[3:0:-2] }}"
                   "{{ l[9:] }}{{ [][::-1] }}{{ 'héllo'[1:3] }}{{ 'abc'[::-1] }}{{ (1,2,3)[1:] }}")
                .value(),
            "[1, 2, 3, 4][0, 1, 2, 3][4, 3, 2, 1, 0][3, 1][][]élcba(2, 3)");
  EXPECT_EQ(
      Render("{% set x = 2 %}{% set m = {'b': x, 1: [x], 'b': 3} %}{{ m }}{{ m.items() | list }}"
             "{% for k, v in m.items() %}{{ k }}{% endfor %}{{ dict(m, c=x).c }}")
          .value(),
      "{'b': 3, 1: [2]}[('b', 3), (1, [2])]b12");
  EXPECT_EQ(
      Render("{% for i in [1,1,2] %}{{ loop.changed(i) }}{{ loop.index }}{% endfor %}").value(),
      "True1False2True3");
  EXPECT_NE(CompileStatus("{% set a.b.c = 1 %}").message().find("variable.name = value"),
            std::string::npos);
  EXPECT_NE(Render("{% set x = {} %}{% set x.y = 1 %}").status().message().find("namespace"),
            std::string::npos);
}

// Each of these would run or grow for ever, or reach out of the template, in a naive engine.
TEST(ChatTemplate, HostileTemplatesEndWithAStatus) {
  const std::vector<std::string> hostile = {
      "{% for i in range(10**9) %}x{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% set n = 10 ** 10 %}{{ 'a' * n }}",
      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}{{ ns.x | length }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}"
      "{% endset %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
      "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}{{ ns.x | length }}",
      "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}"
      "{% endfor %}{{ ns.x | length }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ '%999999999d' | format(1) }}",
      "{{ '{:>999999999}'.format(1) }}",
      "{{ [1] | batch(10 ** 12, 'x') | list }}",
      "{{ [1] | tojson(indent=10 ** 9) }}",
      "{{ 'a\nb' | indent(10 ** 9) }}",
      "{{ ''.__class__.__mro__[1].__subclasses__() }}",
      "{% include '/etc/passwd' %}",
      "{% include 'chat template' %}",
      "{% block a %}{{ self.a() }}{% endblock %}",
      // Values that nest as deep as the template runs.
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = {1: ns.x} %}"
      "{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = dict(a=ns.x) %}"
      "{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x | batch(1) | "
      "list %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [[ns.x]] | "
      "map('first') | list %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for j in [1] %}"
      "{% set ns.x = loop %}{% endfor %}{% endfor %}",
      "{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}",
      "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x].copy %}"
      "{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = cycler(ns.x) %}"
      "{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}"
      "{% set ns.x = [{'a': ns.x}] | groupby('a') %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = {1: ns.x}.items() "
      "%}{% endfor %}",
      "{{ 'a' | center(10 ** 9) }}",
      "{{ 'a'.ljust(10 ** 9) }}",
      "{{ '1'.zfill(10 ** 9) }}",
      "{{ '\\t'.expandtabs(10 ** 9) }}",
      "{{ [1] | slice(10 ** 9) }}",
      "{{ '%999d' * 10 ** 6 }}",
      "{% set f = '%999d' * 200000 %}{{ f % ((1,) * 200000) }}",
      "{% set f = '{0:999}' * 200000 %}{{ f.format(1) }}",
      "{% set s = 'ab ' * 999999 %}{{ s | wordwrap(1, wrapstring='x' * 60) }}",
      "{% set s = 'a' * 999999 %}{{ s.replace('', s) | length }}",
      "{% set s = 'a' * 999999 %}{% for i in range(999) %}{{ s.split('a') | length }}{% endfor %}",
      "{% set s = '<' * 999999 %}{% for i in range(999) %}{{ s | striptags }}{% endfor %}",
      "{% set s = 'a' * 999999 %}{% for i in range(9999) %}{{ s | wordcount }}{% endfor %}",
      "{% set l = range(99999) | list %}{% for i in range(9999) %}{{ l | sort | first }}"
      "{% endfor %}",
      "{% for i in [1] %}{% set x = [{}] | map(attribute='a', default=loop) | list %}{% endfor %}",
      std::string("{{ ") + std::string(100'000, '(') + std::string(100'000, ')') + " }}",
      std::string("{{ ") + std::string(100'000, '[') + " }}",
  };
  for (const std::string& source : hostile) {
    TokenizerConfig config;
    config.chat_templates[kDefaultTemplateName] = source;
    Result<std::unique_ptr<const ChatTemplate>> compiled = ChatTemplate::FromConfig(config, {});
    Status status =
        compiled.ok() ? (*compiled)->Render({.messages_json = "[]"}).status() : compiled.status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << source.substr(0, 120);
  }
}

}  // namespace
}  // namespace millrace::text
