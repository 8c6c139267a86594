// Steps from worker to worker, over loopback sockets.
#include "cluster/link/peer_steps.h"

#include <gtest/gtest.h>

#include "cluster/link/testing/link_harness.h"
#include "wire/testing/random_messages.h"
#include "wire/testing/same.h"

namespace millrace::cluster {
namespace {

using testing::Inbox;
using testing::PlainText;
using testing::WaitUntil;

class Peer {
 public:
  explicit Peer(uint64_t incarnation, const std::string& token = testing::kToken)
      : incarnation_(incarnation) {
    auto started = PeerSteps::Start(
        {.security = PlainText(token), .incarnation = incarnation_},
        {.on_message = [this](PeerMessage message) { messages.Put(std::move(message)); },
         .on_peer_lost =
             [this](Incarnation peer, const Status& reason) {
               lost.Put({peer, reason});
             }});
    MR_CHECK(started.ok()) << started.status().ToString();
    steps = std::move(started).value();
  }
  WorkerAddress address() const {
    WorkerAddress address;
    address.incarnation = incarnation_;
    address.control = "127.0.0.1:" + std::to_string(steps->port());
    return address;
  }

  Inbox<PeerMessage> messages;
  Inbox<std::pair<Incarnation, Status>> lost;
  std::unique_ptr<PeerSteps> steps;

 private:
  const Incarnation incarnation_;
};

TEST(PeerSteps, CarriesMessagesInOrder) {
  Peer a(1), b(2), c(3);
  Rng rng(1);
  std::vector<PeerMessage> sent;
  for (size_t i = 0; i < 100; ++i) {
    sent.push_back(wire::testing::RandomPeerMessage(rng, i % 2));
    ASSERT_TRUE(a.steps->Send(b.address(), Term(1), sent.back()).ok());
    ASSERT_TRUE(c.steps->Send(b.address(), Term(1), BatchOrder{}).ok());
    ASSERT_TRUE(b.steps->Send(a.address(), Term(1), sent.back()).ok());
  }
  ASSERT_TRUE(a.messages.WaitFor(100));
  ASSERT_TRUE(b.messages.WaitFor(200));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(wire::testing::Same(a.messages.at(i), sent[i])) << i;
  }
  EXPECT_EQ(b.steps->counters().received, 200u);
}

TEST(PeerSteps, ANewProcessAtTheSameAddressGetsNoOldMessages) {
  Peer a(1), b(2);
  WorkerAddress before = b.address();
  before.incarnation = Incarnation(55);
  ASSERT_TRUE(a.steps->Send(before, Term(1), BatchOrder{}).ok());
  ASSERT_TRUE(a.lost.WaitFor(1));
  EXPECT_EQ(a.lost.at(0).first, Incarnation(55));
  EXPECT_EQ(a.lost.at(0).second.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(b.messages.size(), 0u);
  EXPECT_EQ(b.steps->counters().stale, 1u);
  ASSERT_TRUE(a.steps->Send(b.address(), Term(1), BatchOrder{}).ok());
  EXPECT_TRUE(b.messages.WaitFor(1));
}

TEST(PeerSteps, ALostPeerIsReported) {
  Peer a(1);
  auto b = std::make_unique<Peer>(2);
  const WorkerAddress address = b->address();
  ASSERT_TRUE(a.steps->Send(address, Term(1), BatchOrder{}).ok());
  ASSERT_TRUE(b->messages.WaitFor(1));
  b.reset();
  ASSERT_TRUE(a.lost.WaitFor(1));
  EXPECT_EQ(a.lost.at(0).first, Incarnation(2));
  // Nothing listens there now. Send may already know that.
  (void)a.steps->Send(address, Term(1), BatchOrder{});
  ASSERT_TRUE(a.lost.WaitFor(2));
  EXPECT_EQ(a.lost.at(1).second.code(), StatusCode::kUnavailable);
}

TEST(PeerSteps, AForgottenPeerIsNotReportedAndAWrongTokenIsRefused) {
  Peer a(1), b(2), stranger(3, "another-token-of-some-length");
  ASSERT_TRUE(a.steps->Send(b.address(), Term(1), BatchOrder{}).ok());
  ASSERT_TRUE(b.messages.WaitFor(1));
  a.steps->Forget(Incarnation(2));
  ASSERT_TRUE(a.steps->Send(b.address(), Term(1), BatchOrder{}).ok());
  ASSERT_TRUE(b.messages.WaitFor(2));
  EXPECT_EQ(a.lost.size(), 0u);

  (void)stranger.steps->Send(b.address(), Term(1), BatchOrder{});
  ASSERT_TRUE(stranger.lost.WaitFor(1));
  EXPECT_EQ(stranger.lost.at(0).second.code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(b.steps->counters().refused, 1u);
  EXPECT_EQ(b.messages.size(), 2u);
  EXPECT_EQ(a.steps->Send(WorkerAddress{}, Term(1), BatchOrder{}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::cluster
