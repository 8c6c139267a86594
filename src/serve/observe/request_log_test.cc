#include "serve/observe/request_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

TEST(RequestLog, GoesOnBehindTheLastWholeLine) {
  const std::string path = testing::TempDir() + "/requests.jsonl";
  std::remove(path.c_str());
  const auto fails = [](const Status& why) { FAIL() << why.ToString(); };
  const LoggedRequest request{.id = "cmpl-1", .body = "{}", .prompt = {1}, .answers = {}};
  const std::string line = EncodeLoggedRequest(request) + '\n';
  (*RequestLog::Open(path, fails))->Write(request);
  std::ofstream(path, std::ios::app) << line.substr(0, 30);
  (*RequestLog::Open(path, fails))->Write(request);
  EXPECT_EQ(*ReadFile(path, 1 << 20), line + line);
  struct stat file = {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

// `millrace verify` asks a server that may refuse what this one lowered.
TEST(RequestLog, HasTheLengthThatWasGiven) {
  const std::string path = testing::TempDir() + "/lowered.jsonl";
  std::remove(path.c_str());
  const auto fails = [](const Status& why) { FAIL() << why.ToString(); };
  const auto log = RequestLog::Open(path, fails).value();
  TestServerOptions options;
  options.service.request_log = log.get();
  TestServer server(std::move(options));
  const Json answer =
      server.Call("/v1/messages",
                  {{"max_tokens", 32000}, {"messages", {{{"role", "user"}, {"content", "x"}}}}});
  for (int i = 0; i < 1000 && !ReadFile(path, 1 << 20)->ends_with('\n'); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // written after the answer
  }
  const Json line = Json::parse(*ReadFile(path, 1 << 20));
  EXPECT_EQ(line["request"]["max_tokens"], answer["usage"]["output_tokens"]);
  server.Call(line["route"].get<std::string>(), line["request"]);
}

TEST(RequestLog, AFolderThatIsNotThereIsAnError) {
  const auto log = RequestLog::Open("/nowhere/log", nullptr);
  EXPECT_EQ(log.status().message(), "/nowhere/log: No such file or directory");
}

}  // namespace
}  // namespace millrace::serve
