#include "text/tokenizer_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/testing/temp_folder.h"
#include "text/chat_template.h"

namespace millrace::text {
namespace {

class TemplateFolder : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(dir_.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string Render(const std::string& tools = "", std::optional<std::string> name = {}) {
    auto loaded = ChatTemplate::Load(dir_.path(), {});
    if (!loaded.ok()) return loaded.status().ToString();
    Result<std::string> text =
        (*loaded)->Render({.messages_json = "[]", .tools_json = tools, .template_name = name});
    return text.ok() ? *text : text.status().ToString();
  }

  TempFolder dir_;
};

TEST_F(TemplateFolder, FilesOfTheirOwnComeFirst) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "c"},
      {"name": "tool_use", "template": "ct"}, {"name": "rag", "template": "cr"}]})");
  EXPECT_EQ(Render(), "c");
  EXPECT_EQ(Render("[{}]"), "ct");
  EXPECT_EQ(Render("[{}]", "rag"), "cr");
  EXPECT_EQ(Render("", "tool_use"), "ct");
  Write("chat_template.jinja", "f");
  EXPECT_EQ(Render(), "f");
  EXPECT_EQ(Render("[{}]"), "ct");
  Write("additional_chat_templates/tool_use.jinja", "at");
  Write("additional_chat_templates/short.jinja", "as");
  Write("additional_chat_templates/README.md", "not a template");
  EXPECT_EQ(Render("[{}]"), "at");
  EXPECT_EQ(Render("", "short"), "as");
  EXPECT_EQ(Render("", "rag"), "cr");
  const std::string unknown = Render("", "nosuch");
  EXPECT_NE(unknown.find("it has default, rag, short, tool_use"), std::string::npos) << unknown;
}

TEST_F(TemplateFolder, AFolderMayHaveNamedTemplatesOnly) {
  Write("tokenizer_config.json", R"({"chat_template": "c"})");
  Write("additional_chat_templates/tool_use.jinja", "at");
  EXPECT_EQ(Render(), "c");
  EXPECT_EQ(Render("[{}]"), "at");
}

TEST_F(TemplateFolder, OlderProcessorsHaveOneInJson) {
  Write("chat_template.json", R"({"chat_template": "p"})");
  EXPECT_EQ(Render(), "p");
  Write("tokenizer_config.json", R"({"chat_template": "c"})");
  EXPECT_EQ(Render(), "c");
}

TEST_F(TemplateFolder, ErrorsNameTheFile) {
  Write("additional_chat_templates/tool_use.jinja", "{% for %}");
  const std::string problem = Render();
  EXPECT_NE(problem.find("additional_chat_templates/tool_use.jinja"), std::string::npos) << problem;
}

}  // namespace
}  // namespace millrace::text
