// A companion of a controller that has no workers.
#include "ops/cluster/companion.h"

#include <gtest/gtest.h>

#include <atomic>

namespace millrace::ops {
namespace {

struct Counter {
  void Arrived(RequestId, int prompt_tokens, Time) { tokens += prompt_tokens; }
  void Heard(const RequestOutput&, Time) { ++heard; }
  int tokens = 0, heard = 0;
};

bool Comes(const std::function<bool()>& met) {
  for (int i = 0; i < 10'000 && !met(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return met();
}

TEST(Companion, HearsOfRequestsAndLooksUntilItIsStopped) {
  const SteadyClock clock;
  cluster::ControllerHostOptions options;
  options.controller.term = Term(1);
  options.controller.model = "none";
  options.controller.num_layers = 2;
  options.controller.scheduler.max_model_len = 96;
  auto host =
      cluster::ControllerHost::Start(std::move(options),
                                     {.send = [](ConnectionId, const ToWorker&) {},
                                      .disconnect = [](ConnectionId, const std::string&) {}},
                                     clock);
  ASSERT_TRUE(host.ok()) << host.status().ToString();
  const auto submit = [&] {
    cluster::GenerationRequest request;
    request.prompt = {1, 2, 3};
    return (*host)->Submit(std::move(request), [](const RequestOutput&) {});
  };

  Companion<Counter> companion(**host, clock);
  const auto count = [&companion](int Counter::*of) {
    return companion.With([of](const Counter& counter, Time) { return counter.*of; });
  };
  std::atomic<int> looks = 0;
  companion.Start([&looks](const cluster::ClusterStatus& status, double unix_s) {
    EXPECT_TRUE(status.missing);
    EXPECT_GT(unix_s, 1e9);
    ++looks;
  });
  EXPECT_TRUE(Comes([&] { return looks > 0; }));
  const auto id = submit();
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  EXPECT_EQ(count(&Counter::tokens), 3);
  (*host)->Abort(*id);
  EXPECT_TRUE(Comes([&] { return count(&Counter::heard) > 0; }));
  const int before = looks;
  companion.LookNow();
  EXPECT_TRUE(Comes([&] { return looks > before; }));

  companion.Stop();
  const int last = looks;
  companion.LookNow();
  EXPECT_TRUE(submit().ok());
  EXPECT_EQ(count(&Counter::tokens), 3);
  EXPECT_EQ(looks, last);
}

}  // namespace
}  // namespace millrace::ops
