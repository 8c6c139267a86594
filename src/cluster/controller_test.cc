// The controller on its own: who may join, and what a lost link or collective means.
#include "cluster/controller.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

std::unique_ptr<Controller> Make(int tensor_parallel) {
  ControllerOptions o;
  o.term = Term(1);
  o.model = "m";
  o.num_layers = 4;
  o.tensor_parallel = tensor_parallel;
  o.scheduler.max_model_len = 64;
  return std::move(Controller::Create(o, {})).value();
}

Join JoinOf(const std::string& name, uint64_t incarnation) {
  Join join;
  join.name = name;
  join.address.incarnation = Incarnation(incarnation);
  return join;
}

template <typename T>
std::vector<std::pair<ConnectionId, T>> Sent(Controller& c) {
  std::vector<ControllerAction> actions;
  c.TakeActions(actions);
  std::vector<std::pair<ConnectionId, T>> out;
  for (ControllerAction& action : actions) {
    auto* send = std::get_if<SendToWorker>(&action);
    if (!send) continue;
    if (auto* found = std::get_if<T>(&send->message)) out.emplace_back(send->to, *found);
  }
  return out;
}

TEST(Controller, OneOfTwoProcessesKeepsTheirName) {
  auto c = Make(1);
  c->Receive(ConnectionId(1), JoinOf("w", 10), At(0));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
  // The first is alive: the second is told to try again, the first is left alone.
  c->Receive(ConnectionId(2), JoinOf("w", 20), At(0.1));
  const auto refused = Sent<Refused>(*c);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first, ConnectionId(2));
  EXPECT_TRUE(refused[0].second.retry);
  EXPECT_EQ(c->counters().workers_lost, 0u);
  // The same process with a new session is itself.
  c->Receive(ConnectionId(3), JoinOf("w", 10), At(0.2));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
  // Silent for a while: the newer one has the name.
  c->Receive(ConnectionId(4), JoinOf("w", 20), At(2));
  EXPECT_EQ(Sent<Welcome>(*c).size(), 1u);
}

TEST(Controller, AWrongWorkerDoesNotTakeAGoodOnesName) {
  auto c = Make(1);
  c->Receive(ConnectionId(1), JoinOf("w", 10), At(0));
  Join wrong = JoinOf("w", 20);
  wrong.identity.protocol_version = kProtocolVersion + 1;
  c->Receive(ConnectionId(2), wrong, At(2));
  EXPECT_EQ(c->counters().workers_lost, 0u);
  EXPECT_EQ(c->counters().joins_refused, 1u);
}

TEST(Controller, MakesAFailedCollectiveAnew) {
  auto c = Make(2);
  c->Receive(ConnectionId(1), JoinOf("a", 10), At(0));
  c->Receive(ConnectionId(2), JoinOf("b", 20), At(0));
  const auto loads = Sent<LoadShard>(*c);
  ASSERT_EQ(loads.size(), 2u);
  for (const auto& [to, load] : loads) {
    ShardLoaded loaded{.shard = load.shard, .kv_bytes_per_token_layer = 8, .kv_bytes = 65536};
    c->Receive(to, loaded, At(0.1));
  }
  sched::NewRequest request;
  request.id = RequestId(1);
  request.prompt = std::make_shared<const std::vector<TokenId>>(3, 1);
  request.params = std::make_shared<const SamplingParams>();
  ASSERT_TRUE(c->Submit(request, At(0.1)).ok());
  c->Advance(At(0.1));
  const auto opened = Sent<OpenLane>(*c);
  ASSERT_EQ(opened.size(), 2u);
  const LaneId lane = opened[0].second.lane;
  for (uint64_t w = 1; w <= 2; ++w) {
    c->Receive(ConnectionId(w), LaneOpened{lane, OkStatus()}, At(0.1));
  }
  c->Advance(At(0.1));
  (void)Sent<LaneStep>(*c);
  c->Receive(ConnectionId(1), LaneBroken{lane, Unavailable("the collective has failed"), {}},
             At(0.2));
  std::vector<ControllerAction> actions;
  c->TakeActions(actions);
  int loaded = 0, unloaded = 0;
  for (const ControllerAction& action : actions) {
    const auto* send = std::get_if<SendToWorker>(&action);
    loaded += send && std::holds_alternative<LoadShard>(send->message);
    unloaded += send && std::holds_alternative<UnloadShard>(send->message);
  }
  EXPECT_EQ(loaded, 2);
  EXPECT_EQ(unloaded, 2);
  EXPECT_EQ(c->requests(), 1u);  // it waits; nobody died
  EXPECT_EQ(c->counters().poisoned, 0u);
}

}  // namespace
}  // namespace millrace::cluster
