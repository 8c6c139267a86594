#include "text/special_guard.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/chat_template.h"

namespace millrace::text {
namespace {

const std::vector<std::string> kTokens = {"<|im_start|>", "<|im_end|>", "<think>", "</think>",
                                          "[INST]",       "<s>",        "PAD"};

// With a bullet where a guard is.
std::string Shown(std::string text) {
  for (size_t at = text.find(kGuardCharacter); at != std::string::npos;
       at = text.find(kGuardCharacter, at)) {
    text.replace(at, kGuardCharacter.size(), "•");
  }
  return text;
}

std::string Rendered(const std::string& source, const std::string& content,
                     const std::string& kwargs = "") {
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] = source;
  const auto compiled = ChatTemplate::FromConfig(config, kTokens).value();
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", content}}};
  const std::string text = messages.dump();
  Result<std::string> rendered = compiled->Render({.messages_json = text, .kwargs_json = kwargs});
  return rendered.ok() ? Shown(*rendered) : rendered.status().ToString();
}

constexpr char kPlain[] = "<|im_start|>{{ messages[0].content }}<|im_end|>";

TEST(SpecialGuard, TokensOfUsersAreGuardedAndThoseOfTheTemplateAreNot) {
  EXPECT_EQ(Rendered(kPlain, "a <|im_end|> b PAD [INST]"),
            "<|im_start|>a <•|im_end|> b P•AD [•INST]<|im_end|>");
  EXPECT_EQ(Rendered(kPlain, "a < b > c | d / [e]"), "<|im_start|>a < b > c | d / [e]<|im_end|>");
  EXPECT_EQ(Rendered("{{ x }}{{ x | tojson }}{{ [x] }}{% for k in y %}{{ k }}{% endfor %}", "",
                     R"({"x": "<s>", "y": {"</think>": 1}})"),
            R"(<•s>"<•s>"['<•s>']<•/think>)");
}

// The template sees what the user wrote.
TEST(SpecialGuard, DoesNotHideTagsFromTheTemplate) {
  const std::string text = "<think>plan</think>answer <|im_end|>";
  for (const auto& [expression, expected] : std::vector<std::pair<std::string, std::string>>{
           {"c.split('</think>')[-1]", "answer <•|im_end|>"},
           {"c.split('</think>')[0].split('<think>')[-1]", "plan"},
           {"c.rsplit('</think>', 1) | length", "2"},
           {"c.partition('</think>')[2]", "answer <•|im_end|>"},
           {"'</think>' in c", "True"},
           {"c.startswith('<think>')", "True"},
           {"c.removeprefix('<think>')[:4]", "plan"},
           {"c.find('</think>')", "11"},
           {"c.count('<')", "3"},
           {"c | length", "36"},
           {"c[7:11]", "plan"},
           {"c[:7] == '<think>'", "True"},
           {"c[:7] in ['<think>']", "True"},
           {"c[:7] < '<think>' ", "False"},
           {"c.replace('<think>', '').replace('</think>', '|')", "plan|answer <•|im_end|>"},
           {"c | replace('<think>', '')", "plan<•/think>answer <•|im_end|>"},
           {"c.strip('<>think')[:4]", "plan"},
           {"c.lstrip('<think>')[:2]", "pl"},
           {"c.rstrip('<|im_end>')", "<•think>plan<•/think>answer "},
           {"[c[:7], '<think>'] | unique | list | length", "1"},
           {"[c[:7]] | select('equalto', '<think>') | list | length", "1"},
           {"[c[:7], 'a'] | sort | first | length", "7"},
           {"c | upper | length", "36"},
           {"c[:7] | e", "&lt;think&gt;"},
           {"c[:7] | urlencode", "%3Cthink%3E"},
           {"'%s|%3s' | format(c[:7], c[0])", "<•think>|  <"},
           {"'{}'.format(c[:7])", "<•think>"},
           {"{'<think>': 'yes'}[c[:7]] | default('no')", "yes"},
           {"c[:7] in {'<think>': 1}", "True"}}) {
    EXPECT_EQ(Rendered("{% set c = messages[0].content %}{{ " + expression + " }}", text), expected)
        << expression;
  }
}

// Nothing that a template does to a text makes a token of what a user wrote.
TEST(SpecialGuard, TokensThatTheTemplateWouldPutTogetherAreGuarded) {
  const std::string strip = "{{ messages[0].content.replace('<think>', '') }}";
  EXPECT_EQ(Rendered(strip, "<|im_<think>end|>"), "<•|im_end|>");
  EXPECT_EQ(Rendered("{{ messages[0].content.split('</think>') | join }}", "<|im_</think>end|>"),
            "<•|im_end|>");
  EXPECT_EQ(Rendered("<{{ messages[0].content }}>", "|im_end|"), "<•|im_end|>");
  EXPECT_EQ(Rendered("<{{ messages[0].content }}>", "/think"), "<•/think>");
  EXPECT_EQ(Rendered("{{ messages[0].content[::-1] }}", ">|dne_mi|<"), "<•|im_end|>");
  EXPECT_EQ(Rendered("{{ messages[0].content | lower }}", "<|IM_END|>"), "<•|im_end|>");
  EXPECT_EQ(Rendered("{{ messages[0].content | striptags }}", "&lt;|im_end|&gt;"), "<•|im_end|>");
  EXPECT_EQ(Rendered("{{ messages[0].content | list | join }}", "<s>"), "<•s>");
  EXPECT_EQ(Rendered("{{ '%s|im_end|>' | format(messages[0].content) }}", "<"), "<•|im_end|>");
  EXPECT_EQ(Rendered("{{ '{}|im_end|>'.format(messages[0].content) }}", "<"), "<•|im_end|>");
  // The role of Phi's messages is a word between the template's own brackets.
  EXPECT_EQ(Rendered("{{ '<|' + messages[0].content + '|>' }}", "im_end"), "<|im_end|>");
}

TEST(SpecialGuard, ForgedTwinsAreNoTwins) {
  for (char last = '\x90'; last < '\xB0'; ++last) {
    const std::string forged = std::string("\xEF\xB7") + last;
    EXPECT_EQ(Rendered(kPlain, forged + "|im_end|>").find("<|im_end|>", 12),
              Rendered(kPlain, forged + "|im_end|>").size() - 10);
  }
}

}  // namespace
}  // namespace millrace::text
