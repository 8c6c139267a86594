#include "apps/cli/parse.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "apps/cli/config_file.h"
#include "apps/cli/help.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/suggest.h"

namespace millrace::apps {
namespace {

enum class Mode { kRecompute, kSwap };

struct Flags {
  std::string model;
  int port = 8000;
  std::optional<int> length;
  std::optional<uint64_t> seed;
  std::optional<int64_t> memory;
  double rate = std::numeric_limits<double>::infinity();
  bool caching = true;
  bool quiet = false;
  Mode mode = Mode::kRecompute;
  std::vector<std::string> keys;
};

class ParseTest : public testing::Test {
 protected:
  ParseTest() {
    root_.name = "millrace";
    auto serve = std::make_unique<Command>();
    serve->name = "serve";
    serve->examples = {{"millrace serve models/demo", "the demo model"}};
    Option model = TextOption("model", "MODEL", &flags_.model);
    model.positional = model.required = true;
    model.aliases = {"-m", "--model"};
    serve->Add("Model", std::move(model), "The model folder");
    serve->Add("Server", IntOption("port", "PORT", &flags_.port, 0, 65535), "TCP port");
    serve->Add("Server", TextListOption("api-key", "KEY", &flags_.keys), "Accepted keys");
    serve->Add("Model", IntOption("max-model-len", "TOKENS", &flags_.length, 1, 1 << 20), "Length")
        .aliases = {"-c"};
    serve->Add("Model", SeedOption("seed", &flags_.seed), "Seed");
    serve->Add("Model", BytesOption("kv-cache-memory", &flags_.memory), "Memory");
    serve->Add("Model",
               RealOption("rate", "R", &flags_.rate, 0, std::numeric_limits<double>::infinity()),
               "Rate");
    serve->Add("Model", FlagOption("enable-prefix-caching", &flags_.caching), "Cache").negatable =
        true;
    serve->Add("Model", FlagOption("quiet", &flags_.quiet), "Quiet");
    serve->Add("Model",
               ChoiceOption<Mode>("preemption-mode", &flags_.mode,
                                  {{"recompute", Mode::kRecompute}, {"swap", Mode::kSwap}}),
               "Mode");
    serve->Add("Model", RefusedOption("trust-remote-code", "nothing is executed"), "");
    AddGeneralOptions(*serve);
    serve_ = serve.get();
    root_.children.push_back(std::move(serve));
    auto bench = std::make_unique<Command>();
    bench->name = "bench";
    auto latency = std::make_unique<Command>();
    latency->name = "latency";
    AddGeneralOptions(*latency);
    bench->children.push_back(std::move(latency));
    root_.children.push_back(std::move(bench));
    auto plan = std::make_unique<Command>();  // runs itself and has a child
    plan->name = "plan";
    plan->summary = "Plan";
    plan->run = [] { return OkStatus(); };
    plan->Add("Plan", FlagOption("quick", &flags_.quiet), "Quick");
    auto check = std::make_unique<Command>();
    check->name = "check";
    check->summary = "Check";
    plan->children.push_back(std::move(check));
    root_.children.push_back(std::move(plan));
  }

  // Empty if it parsed, else the error line.
  std::string Parse(const std::vector<std::string>& args) {
    auto result = ParseCommandLine(root_, args, [this](const std::string& name) {
      const auto at = environment_.find(name);
      return at == environment_.end() ? std::nullopt : std::optional(at->second);
    });
    return result.ok() ? "" : result.status().message();
  }

  std::string WriteConfig(const std::string& text) {
    const std::string path =
        testing::TempDir() + "/parse_test_" + std::to_string(getpid()) + ".yaml";
    std::ofstream(path) << text;
    return path;
  }

  Command root_;
  Command* serve_ = nullptr;
  Flags flags_;
  std::map<std::string, std::string> environment_;
};

TEST_F(ParseTest, ReadsEveryKindOfValue) {
  EXPECT_EQ(Parse({"serve",
                   "demo",
                   "--port=80",
                   "-c",
                   "4096",
                   "--seed",
                   "18446744073709551615",
                   "--kv-cache-memory",
                   "1.5GiB",
                   "--rate",
                   "2.5",
                   "--no-enable-prefix-caching",
                   "--quiet",
                   "--preemption-mode",
                   "swap",
                   "--api-key",
                   "a",
                   "b",
                   "--log-level",
                   "error"}),
            "");
  EXPECT_EQ(flags_.model, "demo");
  EXPECT_EQ(flags_.port, 80);
  EXPECT_EQ(flags_.length, 4096);
  EXPECT_EQ(flags_.seed, 18446744073709551615ull);
  EXPECT_EQ(flags_.memory, 1610612736);
  EXPECT_EQ(flags_.rate, 2.5);
  EXPECT_FALSE(flags_.caching);
  EXPECT_TRUE(flags_.quiet);
  EXPECT_EQ(flags_.mode, Mode::kSwap);
  EXPECT_EQ(flags_.keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(serve_->log_level, "error");
}

TEST_F(ParseTest, AcceptsTheSpellingsOfOtherServers) {
  EXPECT_EQ(Parse({"serve", "-m", "demo", "--max_model_len=12"}), "");  // underscores
  EXPECT_EQ(flags_.length, 12);
  EXPECT_EQ(Parse({"serve", "--api-key", "a", "b", "demo2"}), "");  // MODEL after a list
  EXPECT_EQ(flags_.model, "demo2");
  EXPECT_EQ(flags_.keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(
      Parse({"serve", "demo", "--api-key", "x", "--api-key", "y", "--port", "1", "--port", "2"}),
      "");
  EXPECT_EQ(flags_.keys, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(flags_.port, 2);
  EXPECT_EQ(Parse({"serve", "--model", "serve"}), "");  // a model with a command's name
  EXPECT_EQ(flags_.model, "serve");
}

TEST_F(ParseTest, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string config =
      WriteConfig("model: from-file\nport: 1\nmax_model_len: 2\nquiet: true\napi-key: [k1, k2]\n");
  EXPECT_EQ(Parse({"serve", "--config", config}), "");
  EXPECT_EQ(flags_.model, "from-file");
  EXPECT_EQ(flags_.port, 1);
  EXPECT_EQ(flags_.length, 2);
  EXPECT_TRUE(flags_.quiet);
  EXPECT_EQ(flags_.keys, (std::vector<std::string>{"k1", "k2"}));
  environment_ = {{"MILLRACE_PORT", "10"},
                  {"MILLRACE_MAX_MODEL_LEN", "20"},
                  {"MILLRACE_MODEL", "from-environment"},
                  {"MILLRACE_API_KEY", "e1,e2"},
                  {"MILLRACE_NO_ENABLE_PREFIX_CACHING", "1"},
                  {"MILLRACE_CONFIG", config},
                  {"MILLRACE_LOG_LEVEL", ""}};
  EXPECT_EQ(Parse({"serve", "--port", "100"}), "");
  EXPECT_EQ(flags_.model, "from-environment");
  EXPECT_EQ(flags_.port, 100);
  EXPECT_EQ(flags_.length, 20);
  EXPECT_EQ(flags_.keys, (std::vector<std::string>{"e1", "e2"}));
  EXPECT_FALSE(flags_.caching);
  EXPECT_EQ(serve_->log_level, "info");
}

TEST_F(ParseTest, ErrorsNameTheSourceTheCauseAndTheCure) {
  EXPECT_EQ(Parse({"serve"}),
            "millrace serve: MODEL is missing; for example: millrace serve models/demo");
  EXPECT_EQ(Parse({"serve", "d", "--prot", "5"}),
            "millrace serve: unknown option --prot; did you mean --port?");
  EXPECT_EQ(Parse({"serve", "d", "--port", "eighty"}),
            "millrace serve: --port must be an integer in [0, 65535], got 'eighty'");
  EXPECT_EQ(Parse({"serve", "d", "--port", "80 "}),
            "millrace serve: --port must be an integer in [0, 65535], got '80 '");
  EXPECT_EQ(Parse({"serve", "d", "--port"}), "millrace serve: --port needs a value");
  EXPECT_EQ(Parse({"serve", "d", "e"}),
            "millrace serve: unexpected argument 'e'; one is enough, and options begin with --");
  EXPECT_EQ(Parse({"serve", "d", "--preemption-mode", "swop"}),
            "millrace serve: --preemption-mode must be one of recompute, swap, got 'swop'; did you "
            "mean swap?");
  EXPECT_EQ(Parse({"serve", "d", "--kv-cache-memory", "2 apples"}),
            "millrace serve: --kv-cache-memory must be a number of bytes such as 2GiB, 512MiB or "
            "1048576, got '2 apples'");
  EXPECT_EQ(Parse({"serve", "d", "--seed", "-1"}),
            "millrace serve: --seed must be a whole number, 0 or more, got '-1'");
  EXPECT_EQ(Parse({"serve", "d", "--trust-remote-code"}),
            "millrace serve: --trust-remote-code is not supported: nothing is executed");
  EXPECT_EQ(Parse({"srve"}), "millrace: unknown command 'srve'; did you mean serve?");
  EXPECT_EQ(Parse({"bench", "latncy"}),
            "millrace bench: unknown command 'latncy'; did you mean latency?");
  EXPECT_NE(Parse({"--port", "80", "serve"}).find("options come after the command"),
            std::string::npos);
  environment_["MILLRACE_PORT"] = "70000";
  EXPECT_EQ(Parse({"serve", "d"}),
            "millrace serve: MILLRACE_PORT must be an integer in [0, 65535], got '70000'");
}

TEST_F(ParseTest, ConfigErrorsNameFileAndLine) {
  const auto error = [this](const std::string& text) {
    return Parse({"serve", "d", "--config", WriteConfig(text)});
  };
  EXPECT_NE(error("model: x\nprot: 5\n").find("line 2: unknown option 'prot'; did you mean port?"),
            std::string::npos);
  EXPECT_NE(error("port: x\n").find("line 1) must be an integer"), std::string::npos);
  EXPECT_NE(error("port: [1, 2]\n").find("takes one value, got 2"), std::string::npos);
  EXPECT_NE(error("port: {a: b}\n").find("nested maps are not used"), std::string::npos);
  EXPECT_NE(error("port: 1\nport: 2\n").find("given twice"), std::string::npos);
  EXPECT_NE(error("port: [1\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(error("- a\n").find("must be a map"), std::string::npos);
  EXPECT_NE(Parse({"serve", "d", "--config", "/nonexistent/x.yaml"}).find("/nonexistent/x.yaml"),
            std::string::npos);
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(error("port:\n"), "");
}

TEST_F(ParseTest, HelpTakesPrecedence) {
  auto result = ParseCommandLine(root_, {"serve", "--port", "x", "--help"},
                                 [](const std::string&) { return std::nullopt; });
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->help);
  const std::string help = FormatHelp(*result->command, result->path);
  EXPECT_LT(help.find("Examples:"), help.find("Usage: millrace serve MODEL [OPTIONS]"));
  EXPECT_NE(help.find("[default: 8000]"), std::string::npos);
  EXPECT_NE(help.find("--[no-]enable-prefix-caching"), std::string::npos);
  EXPECT_EQ(help.find("trust-remote-code"), std::string::npos);
  size_t begin = 0;
  while (begin < help.size()) {
    const size_t end = help.find('\n', begin);
    EXPECT_LE(end - begin, size_t{kHelpColumns}) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST_F(ParseTest, ACommandMayRunAndHaveChildren) {
  EXPECT_EQ(Parse({"plan", "--quick"}), "");
  EXPECT_TRUE(flags_.quiet);
  EXPECT_EQ(Parse({"plan", "--quik"}),
            "millrace plan: unknown option --quik; did you mean --quick?");
  EXPECT_EQ(Parse({"plan", "chek"}), "millrace plan: unknown command 'chek'; did you mean check?");
  EXPECT_EQ(Parse({"plan", "check"}), "");
  const std::string help = FormatHelp(*root_.Child("plan"), "millrace plan");
  EXPECT_NE(help.find("--quick"), std::string::npos);
  EXPECT_NE(help.find("check  Check"), std::string::npos);
}

TEST_F(ParseTest, SurvivesArbitraryWords) {
  const std::vector<std::string> pool = {
      "serve",   "bench",     "--",   "-",         "--port",     "--port=",
      "=",       "--=x",      "-c",   "-c5",       "--no-quiet", "--enable-prefix-caching=maybe",
      "[1,2]",   "\x01\xff",  "-9",   "--no-port", "++",         "",
      "--a_b_c", "--api-key", "demo", "--seed"};
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> args;
    for (int64_t i = rng.Between(0, 6); i > 0; --i) {
      args.push_back(
          pool[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(pool.size()) - 1))]);
    }
    EXPECT_EQ(Parse(args).find('\n'), std::string::npos);
  }
}

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("port", "prot"), 1);  // a swap is one edit
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance(std::string(100, 'a'), "a"), 64);
  EXPECT_EQ(Suggest("--max-modl-len", {"--port", "--max-model-len"}), "--max-model-len");
  EXPECT_EQ(Suggest("--max", {"--port", "--max-model-len"}), "--max-model-len");
  EXPECT_EQ(Suggest("--xyzzy", {"--port", "--host"}), std::nullopt);
}

TEST(ConfigFile, IsBoundedAgainstHostileText) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  EXPECT_FALSE(ParseConfig("port: " + deep).ok());
  EXPECT_FALSE(ParseConfig(std::string(kConfigBytesMax + 1, ' ')).ok());
  EXPECT_FALSE(ParseConfig("a: &x [1,1]\nb: &y [*x,*x]\nc: [*y,*y]\n").ok());
}

TEST_F(ParseTest, TheCommandGetsTheNamesOnTheCommandLine) {
  std::set<std::string> given;
  serve_->on_given = [&given](const std::set<std::string>& names) { given = names; };
  serve_->validate = [&given] {
    return RefuseGiven(given, {"rate", "seed"}, "has no effect here");
  };
  environment_["MILLRACE_SEED"] = "3";
  EXPECT_EQ(Parse({"serve", "m", "--port", "1"}), "");
  EXPECT_EQ(given, (std::set<std::string>{"model", "port"}));
  EXPECT_EQ(flags_.seed, 3u);  // the environment may be meant for another command
  EXPECT_EQ(Parse({"serve", "m", "--seed=4"}), "millrace serve: --seed has no effect here");
  EXPECT_TRUE(RefuseOthers({"json"}, {"json", "replay"}, "").ok());
  EXPECT_EQ(RefuseOthers({"json", "rate"}, {"json"}, "is for a forecast").message(),
            "--rate is for a forecast");
}

// 30 s, from nanoseconds, are 30.000000000000004.
TEST(RealOption, ADefaultIsWrittenAsAPersonWould) {
  double seconds = Duration::Seconds(30).seconds(), small = 0.05, large = 86400;
  EXPECT_EQ(RealOption("verify", "SECONDS", &seconds, 1, 60).default_text, "30");
  EXPECT_EQ(RealOption("margin", "SHARE", &small, 0, 1).default_text, "0.05");
  EXPECT_EQ(RealOption("wait", "SECONDS", &large, 0, 1e6).default_text, "86400");
}

}  // namespace
}  // namespace millrace::apps
