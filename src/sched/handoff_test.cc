// Prefill and decode on two schedulers (DistServe section 4.3): the answer must equal that of one
// scheduler, no block may be lost, and every failure of a hand-over must end well.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

constexpr Duration kLease = Duration::Seconds(30);

HarnessOptions Stage(int num_blocks, int stages = 1) {
  HarnessOptions options;
  options.scheduler.num_blocks = num_blocks;
  options.scheduler.max_model_len = 512;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.stages = stages;
  return options;
}

std::vector<TokenId> SpreadPrompt(int tokens, TokenId first) {
  std::vector<TokenId> prompt(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) prompt[i] = (first + 7 * i) % 1000;
  return prompt;
}

SamplingParams Greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

void StopAfterPrompt(NewRequest& request) {
  request.stop_after_prompt = true;
  request.hold_kv = kLease;
}

class HandOff : public ::testing::Test {
 protected:
  // Computes the prompt and its first token on the prefill side and holds the KV.
  RequestId Prefill(const std::vector<TokenId>& prompt) {
    const RequestId id = prefill_.MustAdd(prompt, Greedy(20), StopAfterPrompt);
    prefill_.RunToEnd();
    return id;
  }
  RequestId Decode(const std::vector<TokenId>& prompt, RequestId prefilled, int max_tokens) {
    return decode_.MustAdd(prompt, Greedy(max_tokens), [&](NewRequest& r) {
      r.resumed = {{prefill_.outcome(prefilled).tokens}};
      r.imported_tokens = {static_cast<int>(prompt.size())};
    });
  }
  std::vector<KvPull> Admit() {
    decode_.Schedule();
    return decode_.TakePulls();
  }
  void Pull(const KvPull& pull, RequestId from) {
    const auto held = prefill_.scheduler().HeldBlocks(from);
    decode_.model().Pull(prefill_.model(), held, pull.blocks, pull.first_token, pull.end_token);
    decode_.scheduler().KvArrived(pull.id, true, decode_.now());
    prefill_.scheduler().ReleaseKv(from);
  }
  void ExpectAllFree(Harness& side, int blocks) {
    side.scheduler().CheckIntegrity();
    EXPECT_EQ(side.scheduler().Stats().blocks_free, blocks);
    EXPECT_FALSE(side.scheduler().HasWork());
  }

  Harness prefill_{Stage(64)};
  Harness decode_{Stage(64)};
};

TEST_F(HandOff, TheAnswerIsThatOfOneMachine) {
  Harness alone(Stage(64));
  for (const int tokens : {1, 15, 16, 17, 100, 200}) {
    const auto prompt = SpreadPrompt(tokens, tokens);
    const RequestId whole = alone.MustAdd(prompt, Greedy(20));
    alone.RunToEnd();
    const RequestId first = Prefill(prompt);
    const RequestId rest = Decode(prompt, first, 20);
    const auto pulls = Admit();
    ASSERT_EQ(pulls.size(), 1u);
    Pull(pulls[0], first);
    decode_.RunToEnd();
    auto tokens_delivered = prefill_.outcome(first).tokens;
    const auto& more = decode_.outcome(rest).tokens;
    tokens_delivered.insert(tokens_delivered.end(), more.begin(), more.end());
    EXPECT_EQ(tokens_delivered, alone.outcome(whole).tokens) << tokens << " prompt tokens";
    EXPECT_EQ(decode_.outcome(rest).finish, FinishReason::kLength);
    EXPECT_EQ(decode_.scheduler().Stats().prompt_tokens_recomputed, 0u);
  }
  ExpectAllFree(prefill_, 64);
  ExpectAllFree(decode_, 64);
}

TEST_F(HandOff, TheTimeOfARequestIsThatOfItsPhases) {
  const auto prompt = SpreadPrompt(50, 1);
  const RequestId first = prefill_.MustAdd(prompt, Greedy(20), StopAfterPrompt);
  prefill_.Advance(Duration::Seconds(1));
  prefill_.RunToEnd();
  const RequestTimes before = *prefill_.TakeOutputs().front().times;
  decode_.Advance(prefill_.now() - decode_.now());
  const RequestId rest = decode_.MustAdd(prompt, Greedy(4), [&](NewRequest& r) {
    r.resumed = {{prefill_.outcome(first).tokens}};
    r.imported_tokens = {50};
    r.times = before;
  });
  decode_.Advance(Duration::Seconds(2));
  const auto pulls = Admit();
  ASSERT_EQ(pulls.size(), 1u);
  decode_.Advance(Duration::Seconds(3));
  Pull(pulls[0], first);
  decode_.RunToEnd();
  for (const RequestOutput& output : decode_.TakeOutputs()) {
    if (output.request != rest || !output.times) continue;
    const RequestPhases phases = PhasesOf(*output.times).value();
    EXPECT_GE(phases.queue, Duration::Seconds(1));
    EXPECT_EQ(phases.hold.ns, (Duration::Seconds(2) + (prefill_.now() - *before.last_token)).ns);
    EXPECT_EQ(phases.transfer.ns, Duration::Seconds(3).ns);
    EXPECT_EQ((phases.queue + phases.prefill + phases.hold + phases.transfer + phases.decode).ns,
              (*output.times->last_token - output.times->arrived).ns);
    return;
  }
  FAIL() << "it has not ended";
}

// The output without a reason tells an end after the prompt from the end of the answer.
TEST_F(HandOff, StoppingAfterThePromptIsNotTheEnd) {
  const RequestId id = Prefill(SpreadPrompt(100, 1));
  EXPECT_EQ(prefill_.outcome(id).tokens.size(), 1u);
  EXPECT_EQ(prefill_.outcome(id).finish, std::nullopt);
  std::vector<RequestOutput> outputs = prefill_.TakeOutputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(outputs.front().times.has_value());
  EXPECT_EQ(prefill_.scheduler().Stats().requests_detached, 1u);
  EXPECT_EQ(prefill_.scheduler().HeldBlocks(id).size(), 7u);

  const RequestId one = prefill_.MustAdd(SpreadPrompt(9, 2), Greedy(1), StopAfterPrompt);
  prefill_.RunToEnd();
  EXPECT_EQ(prefill_.outcome(one).finish, FinishReason::kLength) << "all it may generate";
  EXPECT_EQ(prefill_.scheduler().Stats().requests_detached, 1u);

  SamplingParams stops = Greedy(20);
  stops.stop_token_ids = prefill_.outcome(one).tokens;
  const RequestId stopped = prefill_.MustAdd(SpreadPrompt(9, 2), stops, StopAfterPrompt);
  prefill_.RunToEnd();
  EXPECT_EQ(prefill_.outcome(stopped).finish, FinishReason::kStop);
}

// One token is planned for, not the length of the answer.
TEST_F(HandOff, StoppingAfterThePromptNeedsRoomForThePromptAlone) {
  SamplingParams params = Greedy(400);
  Harness small(Stage(7));
  EXPECT_FALSE(small.Add(SpreadPrompt(100, 1), params).ok());
  EXPECT_TRUE(small.Add(SpreadPrompt(100, 1), params, StopAfterPrompt).ok());
  params.max_tokens = 413;
  EXPECT_FALSE(small.Add(SpreadPrompt(100, 1), params, StopAfterPrompt).ok())
      << "the answer is longer than the model allows";
  params = Greedy(400);
  params.n = 3;  // six blocks are shared, and each has its own seventh
  EXPECT_FALSE(small.Add(SpreadPrompt(100, 1), params, StopAfterPrompt).ok());
  Harness nine(Stage(9));
  EXPECT_TRUE(nine.Add(SpreadPrompt(100, 1), params, StopAfterPrompt).ok());
}

// The sequences of a prompt (vLLM section 4.4): the first token of one of them ends the prefill,
// and its KV is pulled once for all. A sequence whose answer is that token ends alone.
TEST_F(HandOff, SeveralSequencesShareTheKvOfThePrompt) {
  const auto prompt = SpreadPrompt(100, 1);
  SamplingParams params;  // sampled, so that the sequences differ
  params.max_tokens = 20;
  params.n = 3;
  Harness alone(Stage(64));
  const RequestId one = alone.MustAdd(prompt, params);
  alone.RunToEnd();
  ASSERT_NE(alone.outcome(one, 0).tokens, alone.outcome(one, 1).tokens);
  for (const bool first_ends : {false, true}) {
    if (first_ends) params.stop_token_ids = {alone.outcome(one, 0).tokens.front()};
    const RequestId whole = alone.MustAdd(prompt, params);
    alone.RunToEnd();
    const RequestId first = prefill_.MustAdd(prompt, params, StopAfterPrompt);
    prefill_.RunToEnd();
    EXPECT_EQ(prefill_.scheduler().HeldBlocks(first).size(), 7u);
    const int leader = first_ends ? 1 : 0;
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(prefill_.outcome(first, k).tokens.size(), k <= leader ? 1u : 0u) << k;
      EXPECT_EQ(prefill_.outcome(first, k).finish.has_value(), k < leader) << k;
    }
    const RequestId rest = decode_.MustAdd(prompt, params, [&](NewRequest& r) {
      r.resumed.resize(3);
      r.resumed[0].finished = first_ends;
      r.resumed[leader].output = prefill_.outcome(first, leader).tokens;
      r.imported_tokens.resize(3);
      r.imported_tokens[leader] = 100;
    });
    const auto pulls = Admit();
    ASSERT_EQ(pulls.size(), 1u) << "once for all sequences";
    Pull(pulls[0], first);
    decode_.RunToEnd();
    for (int k = 0; k < 3; ++k) {
      auto delivered = prefill_.outcome(first, k).tokens;
      const auto& more = decode_.outcome(rest, k).tokens;
      delivered.insert(delivered.end(), more.begin(), more.end());
      EXPECT_EQ(delivered, alone.outcome(whole, k).tokens) << k;
    }
    EXPECT_EQ(decode_.scheduler().Stats().prompt_tokens_recomputed, 0u);
  }
  ExpectAllFree(prefill_, 64);
  ExpectAllFree(decode_, 64);
}

// A request that leaves takes nothing along that was meant for this scheduler.
TEST_F(HandOff, WhatAppliedHereAloneDoesNotLeave) {
  const RequestId id = prefill_.MustAdd(SpreadPrompt(100, 1), Greedy(20), StopAfterPrompt);
  const auto left = prefill_.scheduler().Detach(id, prefill_.now(), std::nullopt);
  ASSERT_TRUE(left.has_value());
  EXPECT_FALSE(left->request.stop_after_prompt);
  EXPECT_FALSE(left->request.hold_kv.has_value());
  EXPECT_EQ(left->request.params->max_tokens, 20);
}

TEST_F(HandOff, HeldKvStaysUntilReleasedOrExpired) {
  const RequestId id = Prefill(SpreadPrompt(100, 1));
  EXPECT_EQ(prefill_.scheduler().Stats().blocks_pinned, 7);
  EXPECT_EQ(prefill_.scheduler().HeldBlocks(id).size(), 7u);
  prefill_.Advance(Duration::Seconds(29));
  prefill_.Schedule();
  EXPECT_EQ(prefill_.scheduler().Stats().blocks_pinned, 7);
  prefill_.Advance(Duration::Seconds(2));
  prefill_.Schedule();
  EXPECT_TRUE(prefill_.scheduler().HeldBlocks(id).empty());
  ExpectAllFree(prefill_, 64);
}

TEST_F(HandOff, AHoldIsExtendedWhileItLasts) {
  const RequestId id = Prefill(SpreadPrompt(100, 1));
  prefill_.Advance(Duration::Seconds(29));
  EXPECT_TRUE(prefill_.scheduler().ExtendHold(id, prefill_.now(), kLease));
  prefill_.Advance(Duration::Seconds(29));
  prefill_.Schedule();
  EXPECT_EQ(prefill_.scheduler().HeldBlocks(id).size(), 7u);
  prefill_.Advance(Duration::Seconds(1));
  EXPECT_FALSE(prefill_.scheduler().ExtendHold(id, prefill_.now(), kLease)) << "it has expired";
  EXPECT_TRUE(prefill_.scheduler().HeldBlocks(id).empty());
  EXPECT_FALSE(prefill_.scheduler().ExtendHold(RequestId(999), prefill_.now(), kLease));
  ExpectAllFree(prefill_, 64);
}

TEST_F(HandOff, HeldKvPushesBack) {
  // 64 blocks hold nine prompts of 100 tokens; the tenth waits until one is fetched.
  std::vector<RequestId> held;
  for (int i = 0; i < 9; ++i) held.push_back(Prefill(SpreadPrompt(100, 100 * i)));
  const RequestId tenth = prefill_.MustAdd(SpreadPrompt(100, 5), Greedy(20), StopAfterPrompt);
  EXPECT_EQ(prefill_.Schedule(), nullptr);
  EXPECT_FALSE(prefill_.finished(tenth));
  prefill_.scheduler().ReleaseKv(held[0]);
  prefill_.RunToEnd();
  EXPECT_TRUE(prefill_.finished(tenth));
}

TEST_F(HandOff, WithoutTheKvItIsComputedHere) {
  const auto prompt = SpreadPrompt(100, 3);
  const RequestId first = Prefill(prompt);
  const RequestId rest = Decode(prompt, first, 10);
  const auto pulls = Admit();
  ASSERT_EQ(pulls.size(), 1u);
  decode_.scheduler().KvArrived(pulls[0].id, false, decode_.now());
  decode_.RunToEnd();
  Harness alone(Stage(64));
  const RequestId whole = alone.MustAdd(prompt, Greedy(10));
  alone.RunToEnd();
  const auto& all = alone.outcome(whole).tokens;
  EXPECT_EQ(decode_.outcome(rest).tokens, std::vector<TokenId>(all.begin() + 1, all.end()));
}

// KV that arrived except for some layers: only these compute its tokens, and they sample nothing.
TEST_F(HandOff, HopsWithoutTheKvComputeAlone) {
  const auto prompt = SpreadPrompt(150, 3);
  const RequestId first = Prefill(prompt);
  const RequestId rest = Decode(prompt, first, 10);
  const auto pulls = Admit();
  ASSERT_EQ(pulls.size(), 1u);
  decode_.scheduler().KvArrivedWithout(pulls[0].id, {1, 3}, decode_.now());
  int alone = 0;
  for (int step = 0; step < 3; ++step) {  // 64, 64 and 22 tokens
    const StepPlan* plan = decode_.Schedule();
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(plan->sequences.size(), 1u);
    const SequenceStep& s = plan->sequences[0];
    EXPECT_EQ(s.only_layers, (LayerRange{1, 3}));
    EXPECT_EQ(s.logits, LogitsWanted::kNone);
    alone += s.num_tokens;
    decode_.Commit();
  }
  EXPECT_EQ(alone, 150);
  const StepPlan* plan = decode_.Schedule();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->sequences[0].start, 150);
  EXPECT_EQ(plan->sequences[0].num_tokens, 1);
  EXPECT_FALSE(plan->sequences[0].only_layers);
  decode_.RunToEnd();
  EXPECT_EQ(decode_.outcome(rest).tokens.size(), 9u);
}

// A request preempted meanwhile has no KV at any hop.
TEST_F(HandOff, PreemptedBeforeTheHopsHaveComputedAllOfThemDo) {
  HarnessOptions options = Stage(14);
  options.scheduler.max_num_batched_tokens = 16;
  options.scheduler.watermark = 0;
  Harness decode(options);
  const auto prompt = SpreadPrompt(150, 3);
  const RequestId first = Prefill(prompt);
  decode.MustAdd(SpreadPrompt(40, 9), Greedy(60));  // first in order, and it grows
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(decode.Schedule(), nullptr);
    decode.Commit();
  }
  const RequestId rest = decode.MustAdd(prompt, Greedy(20), [&](NewRequest& r) {
    r.resumed = {{prefill_.outcome(first).tokens}};
    r.imported_tokens = {150};
  });
  bool preempted = false, whole = false;
  while (const StepPlan* plan = decode.Schedule()) {
    for (const SequenceStep& s : plan->sequences) {
      if (!preempted) continue;
      EXPECT_FALSE(s.only_layers);
      whole = whole || s.num_tokens > 1;
    }
    for (const KvPull& pull : decode.TakePulls()) {
      decode.scheduler().KvArrivedWithout(pull.id, {0, 1}, decode.now());
    }
    decode.Commit();
    const auto info = decode.scheduler().Inspect(rest, decode.now());
    preempted = preempted || (info && info->preemptions > 0);
  }
  EXPECT_TRUE(preempted) << "this is the case under test";
  EXPECT_TRUE(whole);
}

TEST_F(HandOff, AbortWhilePullingKeepsTheBlocksUntilThePullEnds) {
  const auto prompt = SpreadPrompt(100, 4);
  const RequestId first = Prefill(prompt);
  const RequestId rest = Decode(prompt, first, 10);
  const auto pulls = Admit();
  ASSERT_EQ(pulls.size(), 1u);
  EXPECT_EQ(decode_.scheduler().Inspect(rest, decode_.now())->state, RequestState::kPulling);
  decode_.Abort(rest);
  EXPECT_EQ(decode_.scheduler().Stats().blocks_pinned, 7) << "the transfer still writes to them";
  decode_.scheduler().KvArrived(rest, true, decode_.now());
  ExpectAllFree(decode_, 64);
}

TEST_F(HandOff, InvalidHandOversAreRefused) {
  const auto refuse = [&](const std::function<void(NewRequest&)>& change, int max_tokens = 5) {
    return decode_.Add(SpreadPrompt(10, 1), Greedy(max_tokens), change).status().code();
  };
  EXPECT_EQ(refuse([](NewRequest& r) { r.imported_tokens = {10}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse([](NewRequest& r) { r.imported_tokens = {-1}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse([](NewRequest& r) {
              r.resumed = {{{1, 2, 3, 4, 5}}};
            }),
            StatusCode::kInvalidArgument);
}

// Many requests with scarce decode memory. Pulls take time, fail, or belong to requests that were
// aborted meanwhile; preempted requests are recomputed from their tokens.
TEST_F(HandOff, RandomHandOversLoseNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    Harness prefill(Stage(40)), decode(Stage(30, static_cast<int>(rng.Between(1, 3))));
    Harness alone(Stage(64));
    struct Job {
      std::vector<TokenId> prompt;
      int max_tokens = 0;
      RequestId first, rest;
      bool aborted = false;
    };
    std::vector<Job> jobs;
    std::vector<std::pair<KvPull, RequestId>> pulling;
    std::map<RequestId, size_t> job_of;
    for (int turn = 0; turn < 4000 && (turn < 400 || decode.scheduler().HasWork()); ++turn) {
      if (turn < 300 && rng.Between(0, 4) == 0) {
        Job job{.prompt = SpreadPrompt(static_cast<int>(rng.Between(1, 90)), turn),
                .max_tokens = static_cast<int>(rng.Between(2, 60))};
        job.first = prefill.MustAdd(job.prompt, Greedy(job.max_tokens), StopAfterPrompt);
        jobs.push_back(job);
      }
      prefill.Turn();
      for (size_t i = 0; i < jobs.size(); ++i) {
        Job& job = jobs[i];
        if (job.rest != RequestId() || !prefill.finished(job.first)) continue;
        job.rest = decode.MustAdd(job.prompt, Greedy(job.max_tokens), [&](NewRequest& r) {
          r.resumed = {{prefill.outcome(job.first).tokens}};
          r.imported_tokens = {static_cast<int>(job.prompt.size())};
        });
        job_of[job.rest] = i;
      }
      decode.Turn();
      for (const KvPull& pull : decode.TakePulls()) {
        pulling.emplace_back(pull, jobs[job_of.at(pull.id)].first);
      }
      if (!pulling.empty() && rng.Between(0, 2) == 0) {
        const auto [pull, from] = pulling.front();
        pulling.erase(pulling.begin());
        const bool complete = rng.Between(0, 5) != 0;
        if (complete) {
          decode.model().Pull(prefill.model(), prefill.scheduler().HeldBlocks(from), pull.blocks,
                              pull.first_token, pull.end_token);
        }
        decode.scheduler().KvArrived(pull.id, complete, decode.now());
        prefill.scheduler().ReleaseKv(from);
      }
      if (!jobs.empty() && rng.Between(0, 60) == 0) {
        Job& job = jobs[rng.Next() % jobs.size()];
        if (job.rest != RequestId() && !decode.finished(job.rest)) {
          decode.Abort(job.rest);
          job.aborted = true;
        }
      }
    }
    for (const auto& [pull, from] : pulling) {
      decode.scheduler().KvArrived(pull.id, true, decode.now());
      prefill.scheduler().ReleaseKv(from);
    }
    int compared = 0;
    for (const Job& job : jobs) {
      if (job.aborted) continue;
      ASSERT_TRUE(decode.finished(job.rest)) << "seed " << seed;
      const RequestId whole = alone.MustAdd(job.prompt, Greedy(job.max_tokens));
      alone.RunToEnd();
      auto delivered = prefill.outcome(job.first).tokens;
      const auto& more = decode.outcome(job.rest).tokens;
      delivered.insert(delivered.end(), more.begin(), more.end());
      ASSERT_EQ(delivered, alone.outcome(whole).tokens) << "seed " << seed;
      ++compared;
    }
    EXPECT_GT(compared, 20);
    ExpectAllFree(decode, 30);
  }
}

}  // namespace
}  // namespace millrace::sched
