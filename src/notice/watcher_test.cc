// The watcher's thread against metadata services on loopback sockets.
#include "notice/watcher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "net/http/http_server.h"
#include "notice/testing/fake_metadata.h"

namespace millrace::notice {
namespace {

using testing::FakeAws;
using testing::FakeAzure;
using testing::FakeGcp;
using testing::FakeMetadata;
using testing::Rfc1123;
using testing::Rfc3339;

constexpr std::chrono::seconds kPatience{20};

// Serves a fake over HTTP. Questions that have no answer yet wait for the next Change.
class Served {
 public:
  explicit Served(FakeMetadata& fake) : fake_(fake) {
    auto server = net::HttpServer::Start({}, [this](net::HttpRequest request,
                                                    std::shared_ptr<net::HttpReply> reply) {
      MutexLock lock(mutex_);
      Waiting waiting{{.method = request.method,
                       .target = request.path + (request.query.empty() ? "" : "?" + request.query),
                       .headers = request.headers,
                       .body = request.body},
                      clock_.Now(),
                      std::move(reply)};
      if (!Answered(waiting, waiting.asked)) waiting_.push_back(std::move(waiting));
    });
    MR_CHECK(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  ~Served() { Stop(); }
  void Stop() { server_.reset(); }

  void Change(const std::function<void()>& change) {
    MutexLock lock(mutex_);
    change();
    std::erase_if(waiting_,
                  [&](Waiting& each) MR_REQUIRES(mutex_) { return Answered(each, clock_.Now()); });
  }
  uint16_t port() const { return server_->port(); }

 private:
  struct Waiting {
    Question question;
    Time asked;
    std::shared_ptr<net::HttpReply> reply;
  };
  bool Answered(Waiting& waiting, Time now) MR_REQUIRES(mutex_) {
    const auto answer = fake_.Try(waiting.question, waiting.asked, {now, WallNow()});
    if (!answer) return false;
    if (!answer->status.ok()) {  // the connection breaks off
      waiting.reply->Start({});
      waiting.reply.reset();
      return true;
    }
    waiting.reply->Send({answer->code, answer->headers, answer->body});
    return true;
  }

  const SteadyClock clock_;
  FakeMetadata& fake_;
  Mutex mutex_;
  std::vector<Waiting> waiting_ MR_GUARDED_BY(mutex_);
  std::unique_ptr<net::HttpServer> server_;
};

class Watching : public ::testing::Test {
 protected:
  // The watcher's thread must not be the first that logs: where the log's library is not
  // instrumented, ThreadSanitizer does not see that its set-up is guarded.
  static void SetUpTestSuite() { ASSERT_TRUE(InitLog("info").ok()); }
  ~Watching() override { watcher_.reset(); }

  void Watch(NoticeSource source, uint16_t port, std::string argument = "") {
    Watched watched{.source = source, .argument = std::move(argument)};
    watched.endpoint.host = "127.0.0.1";
    watched.endpoint.port = port;
    Watch(std::move(watched));
  }
  void Watch(Watched watched) {
    auto watcher = Watcher::Start(std::move(watched), clock_, [this](const auto& now) {
      MutexLock lock(mutex_);
      told_.push_back(now);
      changed_.notify_all();
    });
    ASSERT_TRUE(watcher.ok()) << watcher.status().ToString();
    watcher_ = std::move(*watcher);
  }
  // What the watcher has said last, once it has said `count` things.
  std::optional<Notice> Told(size_t count) {
    MutexLock lock(mutex_);
    const bool there = changed_.wait_for(
        lock, kPatience, [&]() MR_REQUIRES(mutex_) { return told_.size() >= count; });
    EXPECT_TRUE(there) << "it said " << told_.size() << " things";
    return told_.empty() ? std::nullopt : told_.back();
  }
  size_t told() {
    MutexLock lock(mutex_);
    return told_.size();
  }
  double Left(const Notice& notice) { return (*notice.what.deadline - clock_.Now()).seconds(); }

  const SteadyClock clock_{};
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<Notice>> told_ MR_GUARDED_BY(mutex_);
  std::unique_ptr<Watcher> watcher_;
};

TEST_F(Watching, Aws) {
  FakeAws fake;
  fake.action =
      fmt::format(R"({{"action":"terminate","time":"{}"}})", Rfc3339({WallNow().s + 120}));
  Served served(fake);
  Watch(NoticeSource::kAws, served.port());
  const auto notice = Told(1);
  EXPECT_EQ(ToText(notice->what.origin), "aws: terminate");
  EXPECT_NEAR(Left(*notice), 118, 3);
}

TEST_F(Watching, GcpTellsAtOnce) {
  FakeGcp fake;
  Served served(fake);
  Watch(NoticeSource::kGcp, served.port());
  while (true) {
    bool waits = false;
    served.Change([&] { waits = fake.waiting_questions >= 2; });
    if (waits) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Time before = clock_.Now();
  served.Change([&] { fake.preempted = "TRUE"; });
  EXPECT_EQ(ToText(Told(1)->what.origin), "gcp: preempt");
  EXPECT_LT(clock_.Now() - before, Duration::Seconds(0.5));
}

// Until an answer to its acknowledgement, an event may vanish.
TEST_F(Watching, AzureTakesBackAndIsAcknowledged) {
  FakeAzure fake;
  Served served(fake);
  fake.events.push_back({.id = "E1", .type = "Preempt", .not_before = Rfc1123({WallNow().s + 30})});
  Watch(NoticeSource::kAzure, served.port());
  EXPECT_EQ(ToText(Told(1)->what.origin), "azure: preempt");
  served.Change([&] { fake.events.clear(); });
  EXPECT_EQ(Told(2), std::nullopt);
  served.Change([&] {
    fake.events.push_back(
        {.id = "E2", .type = "Terminate", .not_before = Rfc1123({WallNow().s + 300})});
  });
  EXPECT_TRUE(Told(3)->cancelable);
  watcher_->SetDrained(true);
  EXPECT_FALSE(Told(4)->cancelable) << "it has started";
  served.Change([&] { EXPECT_EQ(fake.started, (std::vector<std::string>{"E2"})); });
}

// Nothing listens, answers break off, are too large, or do not come: nothing is said, and the
// watcher ends at once.
TEST_F(Watching, BrokenServicesSayNothing) {
  FakeAzure fake;
  fake.events.push_back({.id = "E1", .type = "Preempt", .not_before = Rfc1123({WallNow().s + 30})});
  Served served(fake);
  for (const Answer& answer :
       {Answer{.status = Unavailable("reset")}, testing::Code(503),
        testing::Ok(std::string(kAnswerBytesMax + 1, ' ')), testing::Ok("{")}) {
    served.Change([&] { fake.instead_of = {{"/metadata/scheduledevents", answer}}; });
    Watch(NoticeSource::kAzure, served.port());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(told(), 0u);
  }
  served.Change([&] { fake.hangs = true; });
  Watch(NoticeSource::kAzure, served.port());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Time before = clock_.Now();
  watcher_.reset();
  EXPECT_LT(clock_.Now() - before, Duration::Seconds(1));
  EXPECT_EQ(told(), 0u);
  // Back to work as soon as the service is.
  Watch(NoticeSource::kAzure, served.port());
  served.Change([&] {
    fake.hangs = false;
    fake.instead_of.clear();
  });
  EXPECT_EQ(ToText(Told(1)->what.origin), "azure: preempt");
}

TEST_F(Watching, AServiceThatNeverAnswersIsAskedAgain) {
  FakeGcp fake;
  fake.hangs = true;
  Served served(fake);
  Watch(NoticeSource::kGcp, served.port());
  std::this_thread::sleep_for(std::chrono::milliseconds(2300));  // beyond the limit of a question
  served.Change([&] {
    fake.hangs = false;
    fake.preempted = "TRUE";
  });
  EXPECT_EQ(ToText(Told(1)->what.origin), "gcp: preempt");
}

TEST_F(Watching, NothingListens) {
  uint16_t port = 0;
  {
    FakeAws fake;
    const Served served(fake);
    port = served.port();
  }
  Watch(NoticeSource::kAws, port);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(told(), 0u);
}

TEST_F(Watching, AFileAndASignal) {
  std::string folder = std::filesystem::temp_directory_path() / "watching-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/notice";
  Watched watched{.signal = {.source = NoticeSource::kKubernetes, .grace = Duration::Seconds(20)},
                  .source = NoticeSource::kFile,
                  .argument = path};
  Watch(std::move(watched));
  std::ofstream(path) << "60";
  EXPECT_EQ(ToText(Told(1)->what.origin), "file: preempt");
  std::filesystem::remove(path);
  EXPECT_EQ(Told(2), std::nullopt);
  watcher_->Signalled();
  EXPECT_EQ(ToText(Told(3)->what.origin), "kubernetes: terminate");
  EXPECT_NEAR(Left(*Told(3)), 19, 3);
  std::ofstream(path) << "5";
  EXPECT_EQ(ToText(Told(4)->what.origin), "file: preempt") << "it is due first";
  std::filesystem::remove(path);
  EXPECT_EQ(ToText(Told(5)->what.origin), "kubernetes: terminate");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace::notice
