// A store that is locked by another program holds up nobody but those that wait for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/testing/temp_folder.h"
#include "cluster/store/sqlite_db.h"
#include "serve/observe/request_log.h"
#include "serve/stored/object_store.h"
#include "serve/stored/stored_reply.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

class BusyStore : public testing::Test {
 protected:
  BusyStore() {
    options_ = Reciting("hello");
    options_.service.store = ObjectStore::Open({.folder = folder_.path()}).value();
    options_.service.worker_threads = 1;  // delivers all streams
  }
  void Lock() {
    auto db = cluster::SqliteDb::Open(folder_.path() + "/objects.sqlite", 0);
    ASSERT_TRUE(db.ok());
    lock_.emplace(std::move(*db));
    ASSERT_TRUE(lock_->Execute("BEGIN EXCLUSIVE").ok());
  }

  const TempFolder folder_;
  TestServerOptions options_;
  std::optional<cluster::SqliteDb> lock_;
};

// Whether or not a client stores anything.
TEST_F(BusyStore, AServerIsNotReadyOnceItsFileIsGone) {
  TestServer server(options_);
  std::filesystem::remove(folder_.path() + "/objects.sqlite");
  const Time end = SteadyClock().Now() + Duration::Seconds(20);
  int status = 0;
  while (status != 503 && SteadyClock().Now() < end) {
    const auto reply = server.Start("GET", "/ready");
    ASSERT_TRUE(reply->WaitDone());
    status = reply->status();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(status, 503);
  const std::string said = server.Get("/ready", 503)["error"]["message"];
  EXPECT_EQ(said, "Objects cannot be stored; the server's log has the cause.");
}

TEST_F(BusyStore, HoldsUpNoStreamOfOthers) {
  TestServer server(options_);
  Lock();
  const Json body = {{"input", "x"}};
  Json streamed = body;
  streamed["stream"] = true;
  std::vector<std::shared_ptr<RecordingReply>> storing;
  for (int i = 0; i < 4; ++i) {
    storing.push_back(server.Post("/v1/responses", body));
    storing.push_back(server.Post("/v1/responses", streamed));
  }
  const Time begin = SteadyClock().Now();
  for (int i = 0; i < 10; ++i) {
    server.Call("/v1/completions", {{"prompt", "x"}, {"max_tokens", 4}});
  }
  EXPECT_LT((SteadyClock().Now() - begin).seconds(), 1.5) << "the lock is waited for 2 s";
  for (const auto& reply : storing) {
    ASSERT_TRUE(reply->WaitDone());
    EXPECT_EQ(reply->status(), 200);
    const auto events = TypedEvents(reply->body());
    const Json response =
        events.empty() ? Json::parse(reply->body()) : events.back().data["response"];
    EXPECT_EQ(response["status"], "completed");
    EXPECT_EQ(response["store"], false);
    server.Get("/v1/responses/" + response["id"].get<std::string>(), 404);
  }
  EXPECT_LT((SteadyClock().Now() - begin).seconds(), 8) << "2 s for the first, not for each";
  lock_.reset();
  const Json stored = server.Call("/v1/responses", body);
  EXPECT_EQ(stored["store"], true);
  server.Get("/v1/responses/" + stored["id"].get<std::string>());
}

TEST_F(BusyStore, WorkInTheBackgroundWaitsForIt) {
  TestServer server(options_);
  server.gate.Close();
  const Json queued = server.Call("/v1/responses", {{"input", "x"}, {"background", true}});
  Lock();
  server.gate.Open();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // one try is over
  lock_.reset();
  const std::string path = "/v1/responses/" + queued["id"].get<std::string>();
  for (int i = 0; i < 500; ++i) {
    if (options_.service.store->ListOpen(ObjectKind::kResponse)->empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(options_.service.store->ListOpen(ObjectKind::kResponse)->empty());
  EXPECT_EQ(server.Get(path)["status"], "completed");
}

TEST(StoredReply, SaysThatNothingIsStored) {
  EXPECT_EQ(BodyNotStored(R"({"id":"x","store":true})"), R"({"id":"x","store":false})");
  const std::string first = "event: a\ndata: {\"x\":1}\n\n";
  const std::string last = "event: b\ndata: {\"response\":{\"store\":true},\"type\":\"b\"}\n\n";
  EXPECT_EQ(EventsNotStored(first + last),
            first + "event: b\ndata: {\"response\":{\"store\":false},\"type\":\"b\"}\n\n");
  EXPECT_EQ(EventsNotStored(first), first);
}

// A pipe that nobody empties stands for a disk that hangs.
TEST(RequestLogOfASlowDisk, DelaysNoAnswer) {
  const TempFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto log = RequestLog::Open(path, [](const Status& why) { FAIL() << why.ToString(); }).value();
  // A line is more than the pipe holds.
  const LoggedRequest request{
      .id = "cmpl-1", .body = "{}", .prompt = std::vector<TokenId>(30'000, 7), .answers = {}};
  const Time begin = SteadyClock().Now();
  for (int i = 0; i < 20; ++i) log->Write(request);
  EXPECT_LT((SteadyClock().Now() - begin).seconds(), 5);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // while the log is its writer
  ASSERT_GE(fd, 0);
  std::thread reader([&] {
    std::string buffer(1 << 16, '\0');
    size_t lines = 0;
    while (lines < 20) {
      const ssize_t n = ::read(fd, buffer.data(), buffer.size());
      if (n <= 0) break;
      lines += static_cast<size_t>(std::count(buffer.begin(), buffer.begin() + n, '\n'));
    }
    EXPECT_EQ(lines, 20u) << "all are written in the end";
    ::close(fd);
  });
  log.reset();
  reader.join();
}

}  // namespace
}  // namespace millrace::serve
