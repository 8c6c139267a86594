#include "apps/cli/completion.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>

#include "apps/cli/man.h"

namespace millrace::apps {
namespace {

std::string Shell(const std::string& command) {
  std::string out;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char buffer[512];
  while (pipe != nullptr && fgets(buffer, sizeof buffer, pipe.get()) != nullptr) out += buffer;
  return out;
}

std::string WriteTemp(const std::string& name, const std::string& text) {
  const std::string path =
      testing::TempDir() + "/completion_test_" + std::to_string(getpid()) + name;
  std::ofstream(path) << text;
  return path;
}

class CompletionTest : public testing::Test {
 protected:
  CompletionTest() {
    root_.name = "millrace";
    root_.summary = "serve models";
    root_.description = ".dots and 'quotes' at the start; a back\\slash.";
    auto serve = std::make_unique<Command>();
    serve->name = "serve";
    serve->summary = "Serve";
    Option model = TextOption("model", "MODEL", &text_);
    model.positional = true;
    model.aliases = {"-m"};
    model.kind = ValueKind::kFolder;
    serve->Add("Model", std::move(model), "The folder");
    Option level = TextOption("log-level", "LEVEL", &text_);
    level.choices = {"info", "error"};
    serve->Add("General", std::move(level), "It's the level [of] all: messages");
    serve->Add("General", FlagOption("quiet", &flag_), "Say less").negatable = true;
    root_.children.push_back(std::move(serve));
    auto bench = std::make_unique<Command>();
    bench->name = "bench";
    bench->summary = "Measure";
    auto latency = std::make_unique<Command>();
    latency->name = "latency";
    latency->summary = "One batch";
    latency->Add("G", FlagOption("quick", &flag_), "Few rounds");
    bench->children.push_back(std::move(latency));
    root_.children.push_back(std::move(bench));
    auto hidden = std::make_unique<Command>();
    hidden->name = "secret";
    hidden->hidden = true;
    root_.children.push_back(std::move(hidden));
  }

  // What bash offers after the given words; the last word is being typed.
  std::string Complete(const std::string& words) {
    const std::string script = WriteTemp(".bash", BashCompletion(root_));
    return Shell(
        "bash -c 'source " + script + "; COMP_WORDS=(" + words +
        "); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _millrace; echo \"${COMPREPLY[*]}\"' 2>&1");
  }

  Command root_;
  std::string text_ = "info";
  bool flag_ = false;
};

TEST_F(CompletionTest, BashCompletesCommandsOptionsAndValues) {
  EXPECT_EQ(Complete("millrace \"\""), "serve bench\n");
  EXPECT_EQ(Complete("millrace se"), "serve\n");
  EXPECT_EQ(Complete("millrace bench \"\""), "latency\n");
  EXPECT_EQ(Complete("millrace bench latency --"), "--quick\n");
  EXPECT_EQ(Complete("millrace serve --q"), "--quiet\n");
  EXPECT_EQ(Complete("millrace serve --no"), "--no-quiet\n");
  EXPECT_EQ(Complete("millrace serve --log-level \"\""), "info error\n");
  EXPECT_EQ(Complete("millrace serve --log-level e"), "error\n");
  EXPECT_EQ(Complete("millrace serve /us"), "/usr\n");
  EXPECT_EQ(Complete("millrace serve -m /us"), "/usr\n");
}

TEST_F(CompletionTest, EveryShellGetsEveryCommandAndNoHiddenOne) {
  for (const std::string& script :
       {BashCompletion(root_), ZshCompletion(root_), FishCompletion(root_)}) {
    for (const char* word : {"serve", "bench", "latency", "quick", "log-level", "quiet"}) {
      EXPECT_NE(script.find(word), std::string::npos) << word;
    }
    EXPECT_EQ(script.find("secret"), std::string::npos);
  }
  if (std::system("command -v zsh >/dev/null") == 0) {
    EXPECT_EQ(Shell("zsh -n " + WriteTemp(".zsh", ZshCompletion(root_)) + " 2>&1"), "");
  }
  if (std::system("command -v fish >/dev/null") == 0) {
    EXPECT_EQ(Shell("fish -n " + WriteTemp(".fish", FishCompletion(root_)) + " 2>&1"), "");
  }
}

TEST_F(CompletionTest, ManPageFormatsWithoutWarnings) {
  const std::string page = WriteTemp(".1", FormatManPage(root_, "1.0"));
  EXPECT_EQ(Shell("groff -ww -man -Tutf8 -z " + page + " 2>&1"), "");
  const std::string text = Shell("groff -man -Tascii " + page + " 2>&1");
  EXPECT_NE(text.find(".dots and 'quotes' at the start; a back\\slash."), std::string::npos)
      << text;
  EXPECT_NE(text.find("[default: info]"), std::string::npos);
}

}  // namespace
}  // namespace millrace::apps
