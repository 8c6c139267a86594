#include "serve/request_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/file.h"

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

TEST(RequestLog, AFolderThatIsNotThereIsAnError) {
  const auto log = RequestLog::Open("/nowhere/log", nullptr);
  EXPECT_EQ(log.status().message(), "/nowhere/log: No such file or directory");
}

}  // namespace
}  // namespace millrace::serve
