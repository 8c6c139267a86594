#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "apps/cli/parse.h"
#include "apps/commands/bench_serve_file.h"
#include "apps/commands/bench_serve_flags.h"
#include "apps/commands/bench_serve_options.h"
#include "base/file.h"

namespace millrace::apps {
namespace {

// The command without its run.
class BenchServeFlagsTest : public testing::Test {
 protected:
  Status Parse(std::vector<std::string> words) {
    flags_ = {};
    Command root;
    root.name = "bench";
    auto serve = std::make_unique<Command>();
    serve->name = "serve";
    AddBenchServeOptions(*serve, &flags_);
    serve->on_given = [this](const std::set<std::string>& names) { flags_.given = names; };
    serve->validate = [this] { return ValidateBenchServe(flags_); };
    serve->run = [] { return OkStatus(); };
    root.children.push_back(std::move(serve));
    words.insert(words.begin(), "serve");
    return ParseCommandLine(root, words, [](const std::string&) { return std::nullopt; }).status();
  }

  BenchServeFlags flags_;
};

TEST_F(BenchServeFlagsTest, TheKeyBecomesAHeader) {
  ASSERT_TRUE(Parse({"--api-key", "sesame"}).ok());
  EXPECT_EQ(TargetOf(flags_)->headers, (net::HttpHeaders{{"Authorization", "Bearer sesame"}}));
}

TEST_F(BenchServeFlagsTest, ThePathOfChatsMakesThem) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_FALSE(TargetOf(flags_)->chat);
  EXPECT_EQ(TargetOf(flags_)->url.target, "/v1/completions");
  ASSERT_TRUE(Parse({"--endpoint", "/v1/chat/completions", "--dataset-name", "custom",
                     "--dataset-path", "x"})
                  .ok());
  EXPECT_TRUE(TargetOf(flags_)->chat);
  EXPECT_EQ(TargetOf(flags_)->url.target, "/v1/chat/completions");
}

class BenchServeFile : public BenchServeFlagsTest {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/bench_serve_file_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Save() {
    const auto path = SaveResult(flags_, "org/m", 3, {{"duration", 2}, {"ttfts", {0, 1}}});
    EXPECT_TRUE(path.ok()) << path.status().ToString();
    return *path;
  }

  std::string folder_;
};

TEST_F(BenchServeFile, HasTheKeysOfVllm) {
  ASSERT_TRUE(Parse({"--save-result", "--result-dir", folder_, "--max-concurrency", "4"}).ok());
  const std::string path = Save();
  EXPECT_TRUE(path.starts_with(folder_ + "/openai-infqps-concurrency4-m-")) << path;
  const Json file = *ParseJson(*ReadFile(path, 1 << 20));
  EXPECT_TRUE(file["label"].is_null());
  EXPECT_EQ(file["model_id"], "org/m");
  EXPECT_EQ(file["tokenizer_id"], "org/m");
  EXPECT_EQ(file["num_prompts"], 3);
  EXPECT_EQ(file["request_rate"], "inf");
  EXPECT_EQ(file["max_concurrency"], 4);
  EXPECT_EQ(file["duration"], 2);
  EXPECT_FALSE(file.contains("ttfts"));  // without --save-detailed
}

TEST_F(BenchServeFile, HasTheNameAndTheDetailsThatAreAskedFor) {
  ASSERT_TRUE(Parse({"--save-result", "--save-detailed", "--result-dir", folder_,
                     "--result-filename", "r.json"})
                  .ok());
  const std::string path = Save();
  EXPECT_EQ(path, folder_ + "/r.json");
  EXPECT_EQ((*ParseJson(*ReadFile(path, 1 << 20)))["ttfts"], Json({0, 1}));
}

}  // namespace
}  // namespace millrace::apps
