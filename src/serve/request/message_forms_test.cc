#include "serve/request/message_forms.h"

#include <gtest/gtest.h>

#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

const Json kConversation = Json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "Sure.", "tool_calls": [
      {"id": "a", "type": "function",
       "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
      {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{\"s\": \"cut of"}}]},
    {"role": "tool", "tool_call_id": "b", "content": "rb"},
    {"role": "tool", "tool_call_id": "a", "content": "ra"}])");

std::string PromptOf(const std::string& chat_template, int status = 200) {
  TestServerOptions options = Reciting("x");
  options.chat_template = chat_template;
  TestServer server(options);
  const Json answer = server.Call("/apply-template", {{"messages", kConversation}}, status);
  return status == 200 ? answer["prompt"].get<std::string>()
                       : answer["error"]["message"].get<std::string>();
}

TEST(MessageForms, ArgumentsAsText) {
  EXPECT_EQ(PromptOf("{% for m in messages %}{% for c in m.tool_calls or [] %}"
                     "{{ c.function.name + ':' + c.function.arguments }};{% endfor %}{% endfor %}"),
            "f:{\"b\":1,\"a\":2};g:{\"s\": \"cut of;");
}

TEST(MessageForms, ArgumentsOfACutCallAsAnObject) {
  EXPECT_EQ(PromptOf("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
                     "{% for k, v in c.function.arguments|items %}{{ k }}{{ v }}{% endfor %};"
                     "{% endfor %}{% endfor %}"),
            "fb1a2;g;");
}

TEST(MessageForms, OneCallInAMessage) {
  EXPECT_EQ(PromptOf("{% for m in messages %}{% if m.tool_calls %}"
                     "{% if m.tool_calls|length != 1 %}{{ raise_exception('one') }}{% endif %}"
                     "{{ m.content }}[{{ m.tool_calls[0].function.name }}]"
                     "{% else %}{{ m.content }}{% endif %}{% endfor %}"),
            "qSure.[f]ra[g]rb");
}

TEST(MessageForms, TheErrorIsThatOfTheUsualForm) {
  EXPECT_NE(PromptOf("{{ raise_exception('no ' ~ messages|length) }}", 400).find("no 4"),
            std::string::npos);
}

TEST(MessageForms, NoneWithoutCalls) {
  EXPECT_TRUE(OtherMessageForms(R"([{"role": "user", "content": "\"tool_calls\""}])").empty());
  EXPECT_TRUE(OtherMessageForms(R"([{"role": "assistant", "tool_calls": []}])").empty());
  EXPECT_EQ(OtherMessageForms(R"([{"role": "assistant", "tool_calls": [7]}])").size(), 2u);
}

}  // namespace
}  // namespace millrace::serve
