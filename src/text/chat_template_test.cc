#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "text/golden_templates.h"
#include "text/tokenizer.h"

namespace millrace::text {
namespace {

TEST(ChatTemplate, RendersAsJinja2) {
  EXPECT_EQ(CompareGoldenTemplates(MILLRACE_SOURCE_DIR "/src/text/testdata/chat_templates"), 160);
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

TEST(ChatTemplate, GivesVariablesAndKwargs) {
  EXPECT_EQ(Render("{{ bos_token }}{{ messages[0].content }}{{ x }}{{ tools is none }}",
                   R"({"x": 3, "messages": []})")
                .value(),
            "<s>Hi3True");
  EXPECT_EQ(Render("{% for m in nothing %}x{% endfor %}{{ nothing }}.").value(), ".");
  EXPECT_EQ(Render("{{ strftime_now('%d %B %Y') }}").value(), "02 January 2026");
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

// What a user writes never becomes a special token, however it is escaped.
TEST(ChatTemplate, SpecialTokensInMessagesStayText) {
  auto tokenizer =
      Tokenizer::Load(MILLRACE_SOURCE_DIR "/src/text/testdata/tokenizers/byte_level").value();
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
