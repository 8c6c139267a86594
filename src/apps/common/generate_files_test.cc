#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "apps/common/prompt_file.h"
#include "apps/common/results_file.h"
#include "base/file.h"

namespace millrace::apps {
namespace {

TEST(PromptFile, TextLinesGetTheDefaults) {
  auto items = ParsePrompts("hello\n\n  \nwor\xffld\r\n", R"({"max_tokens":5,"seed":1})");
  ASSERT_TRUE(items.ok()) << items.status().ToString();
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].body, R"({"prompt":"hello","max_tokens":5,"seed":1})");
  EXPECT_TRUE((*items)[0].id.starts_with("1-"));
  EXPECT_TRUE((*items)[1].id.starts_with("4-"));
  EXPECT_FALSE((*items)[0].batch);
}

TEST(PromptFile, BatchLinesKeepTheirOrderAndFields) {
  auto items = ParsePrompts(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3}})"
      "\n"
      R"({"custom_id": "b", "url": "/v1/completions", "body": {"model": "gpt-9", "stream": true, "prompt": [1, 2], "seed": 9}})"
      "\n"
      R"({"prompt": "plain", "temperature": 0})",
      R"({"max_tokens":5,"seed":1})");
  ASSERT_TRUE(items.ok()) << items.status().ToString();
  EXPECT_EQ((*items)[0].id, "a");
  EXPECT_EQ((*items)[0].endpoint, PromptEndpoint::kChat);
  EXPECT_EQ((*items)[0].body,
            R"({"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":3,"seed":1})");
  EXPECT_EQ((*items)[1].body, R"({"prompt":[1,2],"seed":9,"max_tokens":5})");
  EXPECT_TRUE((*items)[1].batch);
  EXPECT_FALSE((*items)[2].batch);
  EXPECT_EQ((*items)[2].body, R"({"prompt":"plain","temperature":0,"max_tokens":5,"seed":1})");
}

TEST(PromptFile, ErrorsNameTheLine) {
  const auto error = [](std::string_view text) {
    return ParsePrompts(text, "{}").status().message();
  };
  EXPECT_NE(error("").find("contains no prompt"), std::string::npos);
  EXPECT_NE(error("{\"prompt\": \"a\"}\nplain\n").find("line 2"), std::string::npos);
  EXPECT_NE(error("{\"custom_id\": \"a\"}").find("'prompt' is missing"), std::string::npos);
  EXPECT_NE(error("{\"custom_id\": 5, \"prompt\": \"x\"}").find("custom_id"), std::string::npos);
  EXPECT_NE(error("{\"url\": \"/v1/embeddings\", \"body\": {}}").find("'url' must be"),
            std::string::npos);
  EXPECT_NE(error("{\"custom_id\": \"a\", \"prompt\": \"x\"}\n{\"custom_id\": \"a\", \"prompt\": "
                  "\"y\"}")
                .find("already used in line 1"),
            std::string::npos);
}

class ResultsFileTest : public testing::Test {
 protected:
  ResultsFileTest() { std::remove(path_.c_str()); }
  ~ResultsFileTest() override { std::remove(path_.c_str()); }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string Content() { return *ReadFile(path_, 1 << 20); }

  const std::string path_ = testing::TempDir() + "/results_file_test_" + std::to_string(getpid());
  ManualClock clock_;
};

TEST_F(ResultsFileTest, ARunContinuesWhereTheLastOneWasCut) {
  const std::string whole = "{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n";
  const std::string torn = "{\"custom_id\":\"c\",\"text\":\"\xc3";
  for (size_t cut = 0; cut <= torn.size(); ++cut) {
    Write(whole + torn.substr(0, cut));
    auto file = ResultsFile::Open(path_, clock_);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ((*file)->size(), 2u);
    EXPECT_EQ((*file)->repaired_bytes(), cut);
    EXPECT_TRUE((*file)->Has("a") && (*file)->Has("b"));
    EXPECT_FALSE((*file)->Has("c"));
    ASSERT_TRUE((*file)->Append({{"custom_id", "c"}}).ok());
    EXPECT_TRUE((*file)->Has("c"));
    EXPECT_EQ(Content(), whole + "{\"custom_id\":\"c\"}\n");
  }
}

TEST_F(ResultsFileTest, AForeignFileIsLeftAlone) {
  for (const std::string text :
       {"dear diary\nyou\n", "notes", "notes\n", "{\"x\":1}\n", "[1]\n{\"custom_id\":\"a\"}\n"}) {
    Write(text);
    auto file = ResultsFile::Open(path_, clock_);
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.status().message().find("line 1"), std::string::npos);
    EXPECT_EQ(Content(), text);
  }
}

TEST_F(ResultsFileTest, ASecondRunIsRefused) {
  auto first = ResultsFile::Open(path_, clock_);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(ResultsFile::Open(path_, clock_).status().message().find("another run"),
            std::string::npos);
}

TEST_F(ResultsFileTest, AFullDiskIsAnError) {
  auto file = ResultsFile::Open("/dev/full", clock_);
  EXPECT_FALSE(file.ok() && (*file)->Append({{"custom_id", "a"}}).ok());
}

}  // namespace
}  // namespace millrace::apps
