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
  std::string Error(std::vector<std::string> words) { return Parse(std::move(words)).message(); }

  BenchServeFlags flags_;
};

TEST_F(BenchServeFlagsTest, SamplingFieldsAreThoseThatWereGiven) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(TargetOf(flags_)->fields, Json({{"temperature", 0}}));
  EXPECT_TRUE(TargetOf(flags_)->headers.empty());
  const Status parsed = Parse({"--temperature",
                               "0.5",
                               "--top-p",
                               "0.25",
                               "--top-k",
                               "7",
                               "--min-p",
                               "0.125",
                               "--frequency-penalty",
                               "1",
                               "--presence-penalty",
                               "-1",
                               "--repetition-penalty",
                               "1.5",
                               "--extra-body",
                               R"({"stop": ["."]})",
                               "--header",
                               "X-Team=blue",
                               "X-Mark=a=b",
                               "--request-id-prefix",
                               "run-",
                               "--logprobs",
                               "2"});
  ASSERT_TRUE(parsed.ok()) << parsed.ToString();
  const LoadTarget target = *TargetOf(flags_);
  EXPECT_EQ(target.fields, Json({{"temperature", 0.5},
                                 {"top_p", 0.25},
                                 {"top_k", 7},
                                 {"min_p", 0.125},
                                 {"frequency_penalty", 1},
                                 {"presence_penalty", -1},
                                 {"repetition_penalty", 1.5},
                                 {"stop", {"."}}}));
  EXPECT_EQ(target.headers, (net::HttpHeaders{{"X-Team", "blue"}, {"X-Mark", "a=b"}}));
  EXPECT_EQ(target.request_id_prefix, "run-");
  EXPECT_EQ(target.logprobs, 2);
}

TEST_F(BenchServeFlagsTest, AHeaderReplacesTheKeyOfTheEnvironment) {
  ASSERT_TRUE(Parse({"--api-key", "sesame"}).ok());
  EXPECT_EQ(TargetOf(flags_)->headers, (net::HttpHeaders{{"Authorization", "Bearer sesame"}}));
  ASSERT_TRUE(Parse({"--header", "authorization=Basic x"}).ok());
  EXPECT_EQ(TargetOf(flags_)->headers, (net::HttpHeaders{{"authorization", "Basic x"}}));
}

TEST_F(BenchServeFlagsTest, RandomPromptsBecomeTextsForAChat) {
  EXPECT_NE(Error({"--backend", "openai-chat"}).find("give --tokenizer FOLDER"), std::string::npos);
  EXPECT_TRUE(Parse({"--backend", "openai-chat", "--tokenizer", "models/demo"}).ok());
  EXPECT_TRUE(flags_.chat());
}

TEST_F(BenchServeFlagsTest, WhatHasNoEffectIsRefused) {
  const auto refused = [this](std::vector<std::string> words, const char* why) {
    const std::string error = Error(words);
    EXPECT_NE(error.find(why), std::string::npos) << words[0] << ": " << error;
  };
  refused({"--top-p", "0.5"}, "changes nothing at temperature 0");
  refused({"--min-p", "0.5", "--temperature", "0"}, "changes nothing at temperature 0");
  EXPECT_TRUE(Parse({"--top-k", "5", "--extra-body", R"({"temperature": 1})"}).ok());
  refused({"--temperature", "1", "--extra-body", R"({"temperature": 2})"},
          "--temperature is also in --extra-body");
  refused({"--ignore-eos", "--extra-body", R"({"ignore_eos": false})"}, "--ignore-eos is also in");
  refused({"--extra-body", R"({"stream": false})"}, "'stream' follows from the other options");
  refused({"--extra-body", "[1]"}, "must be a JSON object");
  refused({"--header", "X-Team"}, "must be pairs such as key=value");
  refused({"--header", "X Team=1"}, "must be NAME=VALUE of an HTTP header");
  refused({"--header", "X-Team=a\r\nb"}, "must be NAME=VALUE of an HTTP header");
  refused({"--header", "host=x"}, "'host' follows from the request itself");
  refused({"--header", "Authorization=x", "--api-key", "y"}, "say the same; give one");
  refused({"--header", "x-request-id=x", "--request-id-prefix", "y"}, "say the same; give one");
  refused({"--ramp-up-start-rps", "1"}, "needs --ramp-up-strategy");
  refused({"--ramp-up-strategy", "linear"}, "needs --ramp-up-start-rps");
  const std::vector<std::string> ramp = {
      "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "2",
      "--ramp-up-end-rps",  "4",      "--burstiness",        "2"};
  ASSERT_TRUE(Parse(ramp).ok());
  EXPECT_DOUBLE_EQ(WorkloadOf(flags_).ramp_up->RateOf(1, 3), 3);
  std::vector<std::string> words = ramp;
  words.insert(words.end(), {"--request-rate", "2"});
  refused(words, "--request-rate cannot be used with --ramp-up-strategy");
  words[3] = "5";
  refused(words, "--ramp-up-start-rps 5 is above --ramp-up-end-rps 4");
  refused({"--tokenizer", "x", "--dataset-name", "custom", "--dataset-path", "y"},
          "--dataset-name custom has texts");
  refused({"--prefix-repetition-num-prefixes", "2"}, "needs --dataset-name prefix_repetition");
  refused({"--random-input-len", "2", "--dataset-name", "prefix_repetition"},
          "needs --dataset-name random");
  refused({"--percentile-metrics", "client_queue_time"}, "give --max-concurrency N");
  refused({"--label", "x"}, "needs --save-result");
  refused({"--metadata", "a=b"}, "needs --save-result");
  refused({"--save-result", "--metadata", "duration=b"}, "the result has 'duration' itself");
  refused({"--save-result", "--metadata", "p99_ttft_ms=b"}, "the result has 'p99_ttft_ms' itself");
}

class BenchServeFile : public BenchServeFlagsTest {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/bench_serve_file_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Save() {
    const Json header = ResultHeader(flags_, "org/m", 3, 0);
    const auto path =
        SaveResult(flags_, "org/m", header, {{"duration", 2}, {"queue_times", {0, 1}}});
    EXPECT_TRUE(path.ok()) << path.status().ToString();
    return *path;
  }

  std::string folder_;
};

TEST_F(BenchServeFile, HasTheKeysOfVllm) {
  ASSERT_TRUE(
      Parse({"--save-result", "--result-dir", folder_, "--label", "mine", "--metadata",
             "version=1.2", "tp=1", "--tokenizer", "models/demo", "--max-concurrency", "4",
             "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"})
          .ok());
  const std::string path = Save();
  EXPECT_TRUE(path.starts_with(folder_ + "/mine-ramp-up-linear-1qps-2qps-concurrency4-m-")) << path;
  const Json file = *ParseJson(*ReadFile(path, 1 << 20));
  EXPECT_EQ(file["label"], "mine");
  EXPECT_EQ(file["version"], "1.2");
  EXPECT_EQ(file["tp"], "1");
  EXPECT_EQ(file["model_id"], "org/m");
  EXPECT_EQ(file["tokenizer_id"], "models/demo");
  EXPECT_EQ(file["request_rate"], "inf");
  EXPECT_EQ(file["ramp_up_strategy"], "linear");
  EXPECT_EQ(file["ramp_up_start_rps"], 1);
  EXPECT_EQ(file["ramp_up_end_rps"], 2);
  EXPECT_EQ(file["duration"], 2);
  EXPECT_FALSE(file.contains("queue_times"));  // without --save-detailed
}

TEST_F(BenchServeFile, AppendsOneLinePerRun) {
  ASSERT_TRUE(Parse({"--append-result", "--save-detailed", "--result-dir", folder_,
                     "--result-filename", "all.jsonl"})
                  .ok());
  const std::string path = Save();
  EXPECT_EQ(path, folder_ + "/all.jsonl");
  const std::string once = *ReadFile(path, 1 << 20);
  EXPECT_EQ(std::ranges::count(once, '\n'), 1);
  ASSERT_TRUE(WriteFileAtomically(path, once.substr(0, once.size() - 1)).ok());  // as vLLM ends it
  Save();
  EXPECT_EQ(*ReadFile(path, 1 << 20), once + once);
  EXPECT_TRUE((*ParseJson(once))["label"].is_null());
  EXPECT_EQ((*ParseJson(once))["queue_times"], Json({0, 1}));
}

TEST(RateChangeEvents, HaveAWallClockTimeEach) {
  std::vector<BenchRequest> requests(3);
  for (size_t i = 0; i < 3; ++i) requests[i].arrival_s = 0.25 * static_cast<double>(i + 1);
  const Json events = RateChangeEvents({RampShape::kLinear, 1, 3}, requests, 60.5);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["rps"], 1);
  EXPECT_EQ(events[2]["rps"], 3);
  EXPECT_TRUE(events[0]["timestamp"].get<std::string>().ends_with(":00.500000")) << events;
  EXPECT_TRUE(events[2]["timestamp"].get<std::string>().ends_with(":01.250000")) << events;
}

}  // namespace
}  // namespace millrace::apps
