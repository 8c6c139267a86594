// Shares of clients (Sheng et al., OSDI'24): those who wait get the same, whatever they offer, and
// nobody saves shares up.
#include "sched/fair_shares.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/rng.h"
#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

TEST(FairShares, TheLeastServedOfThoseThatWaitIsFirst) {
  FairShares shares;
  EXPECT_FALSE(shares.First());
  const auto a = shares.Arrives("a"), b = shares.Arrives("b");
  shares.Charge(a, 100, 0);
  EXPECT_EQ(shares.First(), b);
  shares.Charge(b, 0, 51);
  EXPECT_EQ(shares.First(), a) << "a generated token counts twice";
  shares.Dequeued(a);
  EXPECT_EQ(shares.First(), b) << "a does not wait";
}

TEST(FairShares, WhoReturnsIsLiftedToThoseThatWait) {
  FairShares shares;
  const auto idle = shares.Arrives("idle");
  shares.Dequeued(idle);
  shares.Leaves(idle);
  const auto busy = shares.Arrives("busy");
  shares.Charge(busy, 1000, 0);
  EXPECT_EQ(shares.Arrives("idle"), idle);
  EXPECT_EQ(shares.served(idle), 1000);
}

TEST(FairShares, WhoLeavesAndReturnsKeepsItsDebt) {
  FairShares shares;
  const auto a = shares.Arrives("a"), b = shares.Arrives("b");
  shares.Charge(a, 1000, 0);
  shares.Dequeued(a);
  shares.Leaves(a);
  EXPECT_EQ(shares.Arrives("a"), a);
  EXPECT_EQ(shares.served(a), 1000);
  EXPECT_EQ(shares.First(), b);
}

TEST(FairShares, IdleClientsAreForgottenInTheEnd) {
  FairShares shares;
  std::map<FairShares::Slot, int> slots;
  for (int i = 0; i < 2 * kIdleClientsMax; ++i) {
    const auto slot = shares.Arrives(std::to_string(i));
    ++slots[slot];
    shares.Charge(slot, i, 0);
    shares.Dequeued(slot);
    shares.Leaves(slot);
  }
  EXPECT_LE(slots.size(), static_cast<size_t>(kIdleClientsMax) + 1);
}

struct Offer {
  std::string client;
  int requests = 0, prompt = 0, output = 0;
};

// All requests arrive at once. The tokens of each client, weighted, while all of them wait.
std::map<std::string, int64_t> ServedWhileAllWait(const std::vector<Offer>& offers,
                                                  SchedulingPolicy policy, int sequences) {
  Harness h({.scheduler = {.block_size = 4,
                           .num_blocks = 4000,
                           .max_num_seqs = sequences,
                           .max_num_batched_tokens = 64,
                           .max_model_len = 256,
                           .max_waiting = 10000,
                           .policy = policy,
                           .prefix_caching = false},
             .audit = false});
  std::map<std::string, int64_t> served;
  std::map<std::string, int> waiting;
  std::map<RequestId, const Offer*> of;
  for (const Offer& offer : offers) {
    for (int i = 0; i < offer.requests; ++i) {
      const RequestId id = h.MustAdd(std::vector<TokenId>(static_cast<size_t>(offer.prompt), 1),
                                     {.max_tokens = offer.output, .ignore_eos = true},
                                     [&](NewRequest& r) { r.client = offer.client; });
      of[id] = &offer;
      ++waiting[offer.client];
    }
  }
  std::map<RequestId, bool> begun;
  while (std::ranges::all_of(waiting, [](const auto& entry) { return entry.second > 0; })) {
    h.Turn();
    for (const RequestOutput& output : h.TakeOutputs()) {
      const Offer& offer = *of.at(output.request);
      if (!std::exchange(begun[output.request], true)) {
        served[offer.client] += offer.prompt;
        --waiting[offer.client];
      }
      served[offer.client] += kOutputTokenWeight * static_cast<int64_t>(output.tokens.size());
    }
  }
  return served;
}

// Theorem 4.4: two clients that wait all the time differ by at most twice the larger of a prompt
// and what a full batch generates.
TEST(FairPolicy, SharesAreEqualWhateverClientsOffer) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const int sequences = static_cast<int>(rng.Between(2, 12));
    std::vector<Offer> offers;
    int64_t bound = 0;
    for (const char* client : {"a", "b", "c"}) {
      Offer offer{client, static_cast<int>(rng.Between(20, 200)),
                  static_cast<int>(rng.Between(1, 100)), static_cast<int>(rng.Between(1, 60))};
      // What is admitted is charged as it is computed, so each sequence may still owe its answer.
      bound = std::max(
          bound, int64_t{offer.prompt} + kOutputTokenWeight * int64_t{offer.output} * sequences);
      offers.push_back(std::move(offer));
    }
    const auto served = ServedWhileAllWait(offers, SchedulingPolicy::kFair, sequences);
    for (const auto& [one, its] : served) {
      for (const auto& [other, theirs] : served) {
        EXPECT_LE(its - theirs, 2 * bound) << seed << ": " << one << ", " << other;
      }
    }
  }
}

TEST(FairPolicy, TenTimesTheRequestsGetNoMoreThanHalf) {
  const std::vector<Offer> offers = {{"many", 2000, 20, 20}, {"few", 200, 20, 20}};
  auto fcfs = ServedWhileAllWait(offers, SchedulingPolicy::kFcfs, 8);
  EXPECT_GT(fcfs["many"], 100 * fcfs["few"]) << "they came first";
  auto fair = ServedWhileAllWait(offers, SchedulingPolicy::kFair, 8);
  const double share =
      static_cast<double>(fair["few"]) / static_cast<double>(fair["few"] + fair["many"]);
  EXPECT_NEAR(share, 0.5, 0.05);
}

HarnessOptions OnePlace() {
  return {.scheduler = {.block_size = 4,
                        .num_blocks = 64,
                        .max_num_seqs = 1,
                        .max_model_len = 64,
                        .policy = SchedulingPolicy::kFair}};
}

TEST(FairPolicy, OneClientIsServedInOrderOfArrival) {
  Harness h(OnePlace());
  std::vector<RequestId> added, ended;
  for (int i = 0; i < 5; ++i) added.push_back(h.MustAdd({1, 2, 3}, {.max_tokens = 2}));
  h.RunToEnd();
  for (const RequestOutput& output : h.TakeOutputs()) {
    if (output.times) ended.push_back(output.request);
  }
  EXPECT_EQ(ended, added);
}

TEST(FairPolicy, SaysForWhatARequestWaits) {
  Harness h(OnePlace());
  const auto add = [&](std::string client) {
    return h.MustAdd({1, 2, 3}, {.max_tokens = 5}, [&](NewRequest& r) { r.client = client; });
  };
  add("a");
  h.Turn();
  add("b");
  const RequestId last = add("a");
  EXPECT_EQ(h.scheduler().Inspect(last, h.now())->waits_for,
            "its turn: of the clients of 2 waiting requests, the one that was served the fewest "
            "tokens is next");
  h.RunToEnd();
  for (const RequestOutput& output : h.TakeOutputs()) {
    if (output.request != last || !output.times) continue;
    EXPECT_EQ(output.account->entries().front().others, 0) << "b is not before it";
  }
}

TEST(FairPolicy, WhoWaitsCanBeAbortedOrDetached) {
  Harness h(OnePlace());
  const auto of = [](std::string client) { return [client](NewRequest& r) { r.client = client; }; };
  const RequestId first = h.MustAdd({1, 2, 3}, {.max_tokens = 5}, of("a"));
  h.Turn();
  const RequestId aborted = h.MustAdd({1, 2, 3}, {.max_tokens = 5}, of("b"));
  const RequestId moved = h.MustAdd({1, 2, 3}, {.max_tokens = 5}, of("b"));
  const RequestId last = h.MustAdd({1, 2, 3}, {.max_tokens = 5}, of("a"));
  h.Abort(aborted);
  auto left = h.scheduler().Detach(moved, h.now(), std::nullopt);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->request.client, "b");
  ASSERT_TRUE(h.AddAsIs(std::move(left->request)).ok());
  h.RunToEnd();
  for (const RequestId id : {first, moved, last}) {
    EXPECT_EQ(h.outcome(id).finish, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace millrace::sched
