// Small templates, a feature each, against what Jinja2 made of them (testdata/jinja).
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/testing/source_path.h"
#include "text/chat_template.h"

namespace millrace::text {
namespace {

constexpr int64_t kClock = 1'767'323'045;  // 2026-01-02 03:04:05

std::string DataFile(const std::string& name) {
  return ReadFile(SourcePath("src/text/testdata/jinja/" + name), 4 << 20).value();
}

// The text, or how it ended without one.
std::string RenderOrProblem(const std::string& source, const nlohmann::ordered_json& variables) {
  TokenizerConfig config;
  config.chat_templates[kDefaultTemplateName] = source;
  auto compiled = ChatTemplate::FromConfig(config, {});
  if (!compiled.ok()) return "error: " + compiled.status().ToString();
  nlohmann::ordered_json rest = variables;
  const std::string messages = rest["messages"].dump();
  rest.erase("messages");
  const std::string kwargs = rest.dump();
  Result<std::string> text = (*compiled)->Render(
      {.messages_json = messages, .kwargs_json = kwargs, .civil_seconds = kClock});
  return text.ok() ? *text : "error: " + text.status().ToString();
}

TEST(Jinja, RendersAsJinja2OrSaysThatItDoesNot) {
  const auto variables = nlohmann::ordered_json::parse(DataFile("variables.json"));
  std::istringstream lines(DataFile("goldens.jsonl"));
  std::string line;
  int rows = 0;
  while (std::getline(lines, line)) {
    const Json row = ParseJson(line).value();
    const std::string source = row["source"];
    const std::string text = RenderOrProblem(source, variables);
    if (row.contains("out")) {
      EXPECT_EQ(text, row["out"].get<std::string>()) << source;
    } else {
      EXPECT_TRUE(text.starts_with("error: ")) << source << " gave " << text;
    }
    ++rows;
  }
  EXPECT_GT(rows, 450);
}

TEST(Jinja, ErrorsAroundTheGenerationTagNameTheLine) {
  for (const auto& [source, line] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{% generation %}\n{% endgeneration %}\n{% nosuch %}", "line 4"},
           {"a\n{% generation x=1 %}{% endgeneration %}", "line 2"},
           {"{% generation %}\n\n{% endwith %}", "line 3"},
           {"{% with %}\n{% endgeneration %}", "line 2"},
           {"{% generation %}\n{{ raise_exception('x') }}{% endgeneration %}", "line 2"}}) {
    const std::string problem = RenderOrProblem(source, {{"messages", Json::array()}});
    EXPECT_TRUE(problem.starts_with("error: ")) << source << " gave " << problem;
    EXPECT_NE(problem.find(line), std::string::npos) << problem;
  }
}

}  // namespace
}  // namespace millrace::text
