// Sessions and heartbeats between controller and worker, over loopback sockets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "cluster/link/testing/link_harness.h"
#include "net/authority.h"
#include "wire/testing/random_messages.h"
#include "wire/testing/same.h"

namespace millrace::cluster {
namespace {

using testing::ControllerEnd;
using testing::PlainText;
using testing::WaitUntil;
using testing::WorkerEnd;
using wire::testing::Same;

TEST(ControlLink, CarriesEveryMessageBothWaysInOrder) {
  ControllerEnd controller;
  ASSERT_TRUE(controller.status.ok()) << controller.status.ToString();
  WorkerEnd worker(controller.address(), 77);
  ASSERT_TRUE(worker.Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(1));
  const ConnectionId id = controller.messages.at(0).from;
  const Join join = std::get<Join>(controller.messages.at(0).message);
  EXPECT_EQ(join.name, "worker");
  EXPECT_EQ(join.token, "") << "the server removes the token";

  Rng rng(1);
  std::vector<ToWorker> down;
  std::vector<ToController> up;
  for (int round = 0; round < 20; ++round) {
    for (size_t kind = 0; kind < std::variant_size_v<ToWorker>; ++kind) {
      down.push_back(wire::testing::RandomToWorker(rng, kind));
      ASSERT_TRUE(controller.server->Send(id, Term(5), down.back()).ok());
    }
    for (size_t kind = 1; kind < std::variant_size_v<ToController>; ++kind) {
      up.push_back(wire::testing::RandomToController(rng, kind));
      ASSERT_TRUE(worker.client->Send(Term(5), up.back()).ok());
    }
  }
  ASSERT_TRUE(worker.messages.WaitFor(down.size()));
  ASSERT_TRUE(controller.messages.WaitFor(up.size() + 1));
  for (size_t i = 0; i < down.size(); ++i) {
    const auto [message, envelope] = worker.messages.at(i);
    EXPECT_TRUE(Same(message, down[i])) << i;
    EXPECT_EQ(envelope, (wire::Envelope{Term(5), Incarnation(77), i + 1}));
  }
  for (size_t i = 0; i < up.size(); ++i) {
    const auto heard = controller.messages.at(i + 1);
    EXPECT_TRUE(Same(heard.message, up[i])) << i;
    EXPECT_EQ(heard.from, id);
    EXPECT_EQ(heard.envelope, (wire::Envelope{Term(5), Incarnation(77), i + 2}));
  }
}

TEST(ControlLink, EachSideLearnsThatTheOtherEndedTheSession) {
  ControllerEnd controller;
  WorkerEnd worker(controller.address(), 1);
  ASSERT_TRUE(worker.Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(1));
  worker.client->Disconnect();
  ASSERT_TRUE(controller.disconnects.WaitFor(1));
  EXPECT_EQ(worker.disconnects.size(), 0u) << "the side that ends it gets no callback";
  EXPECT_EQ(worker.client->Send(Term(), Leaving{}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(controller.server->Send(controller.messages.at(0).from, Term(), Leave{}).code(),
            StatusCode::kNotFound);

  ASSERT_TRUE(worker.Enter().ok()) << "it can join again";
  ASSERT_TRUE(controller.messages.WaitFor(2));
  const ConnectionId second = controller.messages.at(1).from;
  EXPECT_NE(second, controller.messages.at(0).from);
  // Messages sent before a close still arrive.
  ASSERT_TRUE(controller.server->Send(second, Term(), Refused{Internal("no"), true}).ok());
  controller.server->Close(second, "wrong fingerprint");
  ASSERT_TRUE(worker.disconnects.WaitFor(1));
  EXPECT_EQ(worker.messages.size(), 1u);
  EXPECT_NE(worker.disconnects.at(0).message().find("wrong fingerprint"), std::string::npos);

  ASSERT_TRUE(worker.Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(3));
  controller.server.reset();
  ASSERT_TRUE(worker.disconnects.WaitFor(2));
  EXPECT_EQ(controller.disconnects.size(), 3u);
  EXPECT_EQ(worker.client->Connect(Duration::Millis(300)).code(), StatusCode::kUnavailable);
}

TEST(ControlLink, HeartbeatsPassBlockedSessions) {
  ControllerEnd controller;
  std::mutex mutex;
  std::atomic<bool> block{false};
  controller.before_return = [&] {
    if (block) const std::lock_guard wait(mutex);
  };
  WorkerEnd first(controller.address(), 1), second(controller.address(), 2),
      third(controller.address(), 3);
  for (WorkerEnd* worker : {&first, &second, &third}) ASSERT_TRUE(worker->Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(3));
  {
    const std::lock_guard blocked(mutex);
    block = true;
    for (WorkerEnd* worker : {&first, &second, &third}) {
      EXPECT_TRUE(worker->client->Send(Term(), PipelineOpened{}).ok());
    }
    EXPECT_TRUE(controller.messages.WaitFor(4));
    EXPECT_TRUE(controller.beats.WaitFor(controller.beats.size() + 30))
        << "heartbeats have their own thread";
  }
  EXPECT_TRUE(controller.messages.WaitFor(6));
  EXPECT_GE(controller.server->counters().heartbeats, 30u);
}

TEST(ControlLink, WrongTokensAreRefusedBeforeAnythingIsRead) {
  ControllerEnd controller;
  for (const char* token : {"", "0123456789abcdef-test-tokem", "0123456789abcdef-test-token2"}) {
    LinkSecurity security = PlainText(token);
    if (security.token.empty()) security.token = " ";
    WorkerEnd worker(controller.address(), 1, security);
    EXPECT_EQ(worker.Enter().code(), StatusCode::kUnauthenticated);
    EXPECT_EQ(worker.disconnects.size(), 0u);
  }
  EXPECT_EQ(controller.server->counters().refused, 3u);
  EXPECT_EQ(controller.messages.size(), 0u);
  EXPECT_EQ(controller.disconnects.size(), 0u);
}

TEST(ControlLink, ASessionBeginsWithItsJoin) {
  ControllerEnd controller;
  WorkerEnd worker(controller.address(), 1);
  ASSERT_TRUE(worker.client->Connect(testing::kConnectLimit).ok());
  ASSERT_TRUE(worker.client->Send(Term(), PipelineOpened{}).ok());
  ASSERT_TRUE(worker.disconnects.WaitFor(1));
  EXPECT_EQ(worker.disconnects.at(0).code(), StatusCode::kInvalidArgument);

  ASSERT_TRUE(worker.Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(1));
  ASSERT_TRUE(worker.client->Send(Term(), worker.MakeJoin()).ok());
  ASSERT_TRUE(worker.disconnects.WaitFor(2)) << "a second Join";

  Join other = worker.MakeJoin();
  other.address.incarnation = Incarnation(99);
  ASSERT_TRUE(worker.client->Connect(testing::kConnectLimit).ok());
  ASSERT_TRUE(worker.client->Send(Term(), other).ok());
  ASSERT_TRUE(worker.disconnects.WaitFor(3)) << "the incarnation of another process";
  ASSERT_TRUE(controller.disconnects.WaitFor(1));
  EXPECT_EQ(controller.messages.size(), 1u);
  EXPECT_EQ(controller.server->counters().broken, 1u);
  EXPECT_EQ(controller.server->counters().refused, 2u);
}

TEST(ControlLink, AWorkerThatDoesNotJoinInTimeIsDropped) {
  ControllerEnd controller(
      {.security = PlainText(), .sessions_max = 1, .join_limit = Duration::Millis(300)});
  WorkerEnd idle(controller.address(), 1), other(controller.address(), 2);
  ASSERT_TRUE(idle.client->Connect(testing::kConnectLimit).ok());
  EXPECT_EQ(other.Enter().code(), StatusCode::kResourceExhausted) << "one session is the limit";
  ASSERT_TRUE(idle.disconnects.WaitFor(1));
  EXPECT_TRUE(WaitUntil([&] { return controller.server->counters().sessions == 0; }));
  EXPECT_TRUE(other.Enter().ok());
}

TEST(ControlLink, PlainTextStaysOnTheMachine) {
  LinkSecurity open = PlainText();
  EXPECT_EQ(ControllerEnd({.address = "0.0.0.0:0", .security = open}).status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ControllerEnd({.address = "127.0.0.1:0", .security = {}}).status.code(),
            StatusCode::kInvalidArgument)
      << "a token is required";
  EXPECT_EQ(WorkerEnd("10.1.2.3:7000", 1).status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckLinkSecurity(open, "[::1]:80").ok());
  EXPECT_TRUE(CheckLinkSecurity(open, "localhost:80").ok());
  EXPECT_FALSE(CheckLinkSecurity(open, "127.evil.example:80").ok());
  EXPECT_FALSE(CheckLinkSecurity(open, "nothing").ok());
  open.plain_text_beyond_loopback = true;
  EXPECT_TRUE(CheckLinkSecurity(open, "0.0.0.0:80").ok());
  open.certificate_path = "only one of three";
  EXPECT_FALSE(CheckLinkSecurity(open, "127.0.0.1:80").ok());
}

class TlsFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("millrace-link-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A certificate and key for a process, issued by `authority`.
  LinkSecurity Identity(const net::CertificateAuthority& authority, const std::string& name) {
    const auto issued = authority.Issue({name, {"127.0.0.1"}, Duration::Seconds(3600)});
    MR_CHECK(issued.ok());
    LinkSecurity s;
    s.authority_path = Write(name + ".ca", authority.identity().certificate_pem);
    s.certificate_path = Write(name + ".crt", issued->certificate_pem);
    s.key_path = Write(name + ".key", issued->key_pem);
    return s;
  }
  static net::CertificateAuthority Authority() {
    auto made = net::CertificateAuthority::Create("test", Duration::Seconds(3600));
    MR_CHECK(made.ok());
    return std::move(made).value();
  }

 private:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ / name;
    MR_CHECK(WriteFileAtomically(path, text).ok());
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(TlsFiles, BothSidesShowACertificateOfTheSameAuthority) {
  const auto authority = Authority(), stranger = Authority();
  ControllerEnd controller({.security = Identity(authority, "controller")});
  ASSERT_TRUE(controller.status.ok()) << controller.status.ToString();
  WorkerEnd good(controller.address(), 1, Identity(authority, "worker"));
  ASSERT_TRUE(good.Enter().ok());
  ASSERT_TRUE(controller.messages.WaitFor(1));
  ASSERT_TRUE(controller.beats.WaitFor(1));

  const auto echo = good.client->OpenEcho();
  ASSERT_TRUE(echo.ok());
  EXPECT_TRUE((*echo)->Seconds(EchoCall::Way::kToController, 1, testing::kConnectLimit).ok());

  // A certificate of another authority, with and without accepting ours; no certificate at all.
  LinkSecurity foreign = Identity(stranger, "foreign");
  LinkSecurity impostor = foreign;
  impostor.authority_path = Identity(authority, "worker2").authority_path;
  for (const LinkSecurity& bad : {foreign, impostor, PlainText()}) {
    WorkerEnd worker(controller.address(), 2, bad);
    ASSERT_TRUE(worker.status.ok());
    const Status refused = worker.client->Connect(Duration::Millis(400));
    EXPECT_EQ(refused.code(),
              bad.tls() ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable)
        << refused.message();
    if (!bad.tls()) continue;
    EXPECT_NE(refused.message().find("millrace certs"), std::string::npos) << refused.message();
  }
  EXPECT_EQ(controller.server->counters().joined, 1u);
  ASSERT_TRUE(controller.server->Send(controller.messages.at(0).from, Term(), Leave{}).ok());
  EXPECT_TRUE(good.messages.WaitFor(1)) << "the good worker is not disturbed";
}

// The certificates of `millrace certs` say what their holders may be.
TEST_F(TlsFiles, ACertificateIsForOneRole) {
  const auto authority = Authority();
  const LinkSecurity controllers = Identity(authority, kControllerCommonName);
  const LinkSecurity workers = Identity(authority, kWorkerCommonName);
  ControllerEnd controller({.security = controllers});
  WorkerEnd right(controller.address(), 1, workers);
  EXPECT_TRUE(right.Enter().ok());
  WorkerEnd wrong(controller.address(), 2, controllers);
  const Status refused = wrong.client->Connect(Duration::Seconds(5));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("the certificate of a controller, and must be a worker"),
            std::string::npos)
      << refused.message();
  ControllerEnd impostor({.security = workers});
  WorkerEnd worker(impostor.address(), 1, workers);
  const Status doubted = worker.client->Connect(Duration::Seconds(5));
  EXPECT_EQ(doubted.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(doubted.message().find("the certificate of a worker, and must be a controller"),
            std::string::npos)
      << doubted.message();
}

TEST_F(TlsFiles, ATokenIsRequiredInAdditionToCertificates) {
  const auto authority = Authority();
  LinkSecurity with = Identity(authority, "controller");
  with.token = testing::kToken;
  ControllerEnd controller({.security = with});
  WorkerEnd without(controller.address(), 1, Identity(authority, "worker"));
  EXPECT_EQ(without.Enter().code(), StatusCode::kUnauthenticated);
  WorkerEnd good(controller.address(), 1, with);
  EXPECT_TRUE(good.Enter().ok());
}

}  // namespace
}  // namespace millrace::cluster
