#include "apps/commands/in_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "apps/commands/commands.h"
#include "apps/common/sampling_flags.h"

namespace millrace::apps {
namespace {

TEST(InProcessReply, EndsExactlyOnce) {
  int ends = 0, disconnects = 0;
  std::string streamed;
  net::HttpResponse last;
  PostCallbacks callbacks{.on_data = [&](std::string_view part) { streamed += part; },
                          .on_done =
                              [&](net::HttpResponse response) {
                                ++ends;
                                last = std::move(response);
                              }};
  {
    InProcessApi::Reply reply(callbacks);
    reply.Start({200, {}, ""});
    EXPECT_TRUE(reply.Write("a"));
    reply.End();
    reply.Hangup();
  }
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(last.status, 200);
  EXPECT_EQ(streamed, "a");
  {
    InProcessApi::Reply reply(callbacks);
    reply.OnDisconnect([&] { ++disconnects; });
    reply.Hangup();
    EXPECT_FALSE(reply.Write("b"));
    reply.End();
    reply.OnDisconnect([&] { ++disconnects; });  // at once: the client has gone
  }
  EXPECT_EQ(ends, 2);
  EXPECT_EQ(last.status, 499);
  EXPECT_EQ(disconnects, 2);
  EXPECT_EQ(streamed, "a");
  { InProcessApi::Reply dropped(callbacks); }
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(last.status, 500);
}

TEST(DefaultServedName, IsTheFoldersOwnName) {
  const std::string folder = testing::TempDir() + "/served_names/demo";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(DefaultServedName(folder + "/"), "demo");
  EXPECT_EQ(DefaultServedName("org/name"), "org/name");
}

TEST(SamplingFlags, OnlyWhatWasGivenBecomesAField) {
  SamplingFlags flags;
  EXPECT_EQ(ToFields(flags), (Json{{"max_tokens", 256}}));
  Command command;
  AddSamplingOptions(command, &flags);
  const auto give = [&](const char* name, const std::string& value) {
    const auto option = std::ranges::find(command.options, name, &Option::name);
    ASSERT_NE(option, command.options.end()) << name;
    EXPECT_TRUE(option->set({value}).ok());
  };
  give("temperature", "0");
  give("top-k", "0");
  give("seed", "18446744073709551615");
  give("stop", "\n");
  give("ignore-eos", "true");
  EXPECT_EQ(ToFields(flags), (Json{{"max_tokens", 256},
                                   {"temperature", 0.0},
                                   {"top_k", 0},
                                   {"seed", 18446744073709551615ull},
                                   {"stop", {"\n"}},
                                   {"ignore_eos", true}}));
  for (const Option& option : command.options) {
    EXPECT_EQ(option.default_text, option.name == "max-tokens" ? "256" : "");
  }
}

TEST(Commands, AreDescribedCompletely) {
  const auto root = MakeRootCommand();
  const std::function<void(const Command&)> check = [&](const Command& command) {
    EXPECT_FALSE(command.name.empty() || command.summary.empty());
    EXPECT_FALSE(command.summary.ends_with('.')) << command.name;
    EXPECT_TRUE(command.run != nullptr || !command.children.empty()) << command.name;
    EXPECT_TRUE(command.hidden || !command.examples.empty()) << command.name;
    std::vector<std::string> names;
    for (const Option& option : command.options) {
      if (option.refused.empty()) {
        EXPECT_FALSE(option.help.empty() || option.group.empty()) << option.name;
        EXPECT_NE(option.set, nullptr) << option.name;
        EXPECT_FALSE(option.help.ends_with('.')) << command.name << " " << option.name;
      }
      names.push_back("--" + option.name);
      for (const std::string& alias : option.aliases) {
        if (!option.positional || alias != "--" + option.name) names.push_back(alias);
      }
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << command.name;
    for (const auto& child : command.children) check(*child);
  };
  check(*root);
}

}  // namespace
}  // namespace millrace::apps
