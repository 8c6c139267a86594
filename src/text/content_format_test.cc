#include "text/content_format.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"

namespace millrace::text {
namespace {

Result<std::string> Rendered(const std::string& source, const std::string& messages,
                             ContentFormat format = ContentFormat::kAuto) {
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] = source;
  return ChatTemplate::FromConfig(config, {}, format).value()->Render({.messages_json = messages});
}

constexpr char kParts[] =
    R"([{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}])";
constexpr char kString[] = R"([{"role":"user","content":"one"}])";

constexpr char kWantsString[] = "{% for m in messages %}{{ m.content }};{% endfor %}";
constexpr char kWantsParts[] =
    "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }};{% endfor %}{% endfor %}";
constexpr char kWantsTextParts[] =
    "{% for m in messages %}{% set c = m.content %}{% for p in c if p.type == 'text' %}"
    "{{ p.text }};{% endfor %}{% endfor %}";
constexpr char kWantsFirstPart[] = "{% for m in messages %}{{ m.content[0].text }};{% endfor %}";
constexpr char kTakesBoth[] =
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}";
constexpr char kMacro[] =
    "{% macro show(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}"
    "{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}{{ show(m.content) }};{% endfor "
    "%}";

TEST(ContentFormat, EachTemplateGetsWhatItWants) {
  for (const auto& [source, of_parts, of_string] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {kWantsString, "one\ntwo;", "one;"},
           {kWantsParts, "one;two;", "one;"},
           {kWantsTextParts, "one;two;", "one;"},
           {kWantsFirstPart, "one;", "one;"},
           {kTakesBoth, "onetwo;", "one;"},
           {kMacro, "onetwo;", "one;"},
           {"{{ messages[0].content | tojson }}", R"("one\ntwo")", R"("one")"},
           {"{{ messages[0].content | trim }}", "one\ntwo", "one"},
           {"{{ messages[0].content is string }}", "True", "True"}}) {
    EXPECT_EQ(Rendered(source, kParts).value(), of_parts) << source;
    EXPECT_EQ(Rendered(source, kString).value(), of_string) << source;
  }
}

TEST(ContentFormat, RolesMayDiffer) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}"
      "{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}";
  EXPECT_EQ(Rendered(source, R"([{"role":"system","content":"s"},{"role":"user","content":"u"},
      {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])")
                .value(),
            "s;u;a\nb;");
}

TEST(ContentFormat, CanBeForced) {
  EXPECT_EQ(Rendered("{{ messages[0].content }}", kString, ContentFormat::kParts).value(),
            "[{'type': 'text', 'text': 'one'}]");
  EXPECT_EQ(Rendered(kTakesBoth, kParts, ContentFormat::kString).value(), "one\ntwo;");
}

TEST(ContentFormat, ContentThatIsMissingIsEmpty) {
  const std::string calls = R"("tool_calls":[{"function":{"name":"f","arguments":{}}}])";
  const std::string messages = R"([{"role":"assistant","content":null},{"role":"assistant",)" +
                               calls + R"(},{"role":"assistant","content":"",)" + calls + "}]";
  EXPECT_EQ(Rendered("{% for m in messages %}[{{ m.content + '' }}]{% endfor %}", messages).value(),
            "[][][]");
  // As DeepSeek's templates have it: calls are shown where content is none.
  EXPECT_EQ(Rendered("{% for m in messages %}{% if m.content is none %}"
                     "{{ m.tool_calls[0].function.name }};{% endif %}{% endfor %}",
                     messages)
                .value(),
            "f;f;");
}

}  // namespace
}  // namespace millrace::text
