// Requests are moved at random between two schedulers with an executor each: cold (their tokens are
// computed again), warm (their KV is pulled) and live (pulled in rounds while they go on). Whatever
// the moves, every sequence is told the tokens that it would be told alone, each once; and in the
// end every block is free.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "base/test_scale.h"
#include "sched/testing/harness.h"
#include "sched/testing/questions.h"

namespace millrace::sched {
namespace {

// Turns take a millisecond. Two schedulers that hold KV for each other are set free by its end.
constexpr Duration kHold = Duration::Millis(500);

struct Told {
  std::vector<TokenId> tokens;
  size_t prompt_logprobs = 0;
  bool finished = false;
};

struct Job {
  Question question;
  std::vector<Told> told;
  int side = 0;                        // who may tell news of it
  std::optional<NewRequest> homeless;  // refused for now
  bool ended = false;                  // its times were told
  // A live migration: the other side has been asked, and knows so many of its tokens.
  bool migrating = false;
  size_t shared = 0;
};

struct Counts {
  uint64_t cold = 0, warm = 0, live = 0, broken = 0, refused = 0, pulls = 0;
};

class World {
 public:
  World(Rng& rng, const std::vector<Question>& questions, const SchedulerOptions (&options)[2],
        Counts& counts)
      : rng_(rng), counts_(counts) {
    for (int i = 0; i < 2; ++i) {
      sides_[i] = std::make_unique<Harness>(
          HarnessOptions{.scheduler = options[i], .vocab_size = kQuestionVocab});
    }
    for (const Question& q : questions) {
      Job job{.question = q};
      job.told.resize(static_cast<size_t>(q.params.n));
      coming_.push_back(std::move(job));
    }
  }

  void Run() {
    for (int turn = 0; Work(); ++turn) {
      ASSERT_LT(turn, 20000) << "nothing ends";
      const bool calm = turn > 2000;  // then everybody may end where it is
      if (!coming_.empty() && rng_.Between(0, 2) == 0) Arrive();
      for (int side : {0, 1}) Move(side);
      if (!pulls_.empty() && (calm || rng_.Between(0, 2) == 0)) EndPull();
      for (auto& [id, job] : jobs_) {
        if (job.homeless) Settle(id, job);
        if (job.migrating && rng_.Between(0, 3) == 0) Advance(id, job);
        if (calm || job.ended || job.homeless || job.migrating) continue;
        switch (rng_.Between(0, 30)) {
          case 0: Cold(id, job); break;
          case 1:
          case 2: Warm(id, job); break;
          case 3:
          case 4: StartLive(id, job); break;
          default: break;
        }
      }
      Listen();
      if (testing::Test::HasFatalFailure()) return;
    }
    CheckEnd();
  }

 private:
  struct Pulling {
    KvPull pull;
    int to = 0;
  };

  Scheduler& scheduler(int side) { return sides_[side]->scheduler(); }

  bool Work() {
    return !coming_.empty() || !pulls_.empty() ||
           std::ranges::any_of(jobs_, [](const auto& entry) { return !entry.second.ended; });
  }

  void Arrive() {
    const RequestId id(jobs_.size() + 1);
    Job& job = jobs_.emplace(id, std::move(coming_.back())).first->second;
    coming_.pop_back();
    job.side = static_cast<int>(rng_.Between(0, 1));
    NewRequest r;
    r.id = id;
    r.prompt = std::make_shared<const std::vector<TokenId>>(job.question.prompt);
    r.params = std::make_shared<const SamplingParams>(job.question.params);
    r.seed = job.question.seed;
    ASSERT_TRUE(sides_[job.side]->AddAsIs(std::move(r)).ok());
  }

  void Move(int side) {
    Harness& h = *sides_[side];
    h.Advance(Duration::Millis(1));
    if (rng_.Between(0, 2) != 0) h.Schedule();
    if (h.in_flight() > 0 && rng_.Between(0, 2) != 0) h.Commit();
    Collect(side);
  }

  void Collect(int side) {
    std::vector<KvPull> drained;
    scheduler(side).DrainPulls(drained);
    for (KvPull& pull : drained) {
      pulls_.push_back({std::move(pull), side});
      ++counts_.pulls;
    }
  }

  // The pulls of a request that migrates are not answered for good before its source has let go.
  void EndPull() {
    const size_t i = rng_.Next() % pulls_.size();
    const Pulling p = pulls_[i];
    Job& job = jobs_.at(p.pull.id);
    const auto same = std::ranges::count_if(pulls_, [&](const Pulling& other) {
      return other.pull.id == p.pull.id && other.to == p.to;
    });
    if (job.migrating && job.side != p.to && same == 1) return;
    pulls_.erase(pulls_.begin() + static_cast<long>(i));
    const auto held = scheduler(1 - p.to).HeldBlocks(p.pull.id);
    const int size = 4;
    const bool complete =
        static_cast<int>(held.size()) * size >= p.pull.end_token && rng_.Between(0, 9) != 0;
    if (complete) {
      sides_[p.to]->model().Pull(sides_[1 - p.to]->model(), held, p.pull.blocks, p.pull.first_token,
                                 p.pull.end_token);
    }
    scheduler(p.to).KvArrived(p.pull.id, complete, sides_[p.to]->now());
    scheduler(p.to).CheckIntegrity();
    if (same == 1) scheduler(1 - p.to).ReleaseKv(p.pull.id);
  }

  void ExpectKnown(const Job& job, const NewRequest& r) {
    ASSERT_EQ(r.resumed.size(), job.told.size());
    for (size_t k = 0; k < job.told.size(); ++k) {
      ASSERT_EQ(r.resumed[k].output, job.told[k].tokens);
      ASSERT_EQ(r.resumed[k].finished, job.told[k].finished);
    }
  }

  void Place(RequestId id, Job& job, int side, NewRequest r) {
    job.side = side;
    job.homeless = std::move(r);
    Settle(id, job);
  }

  void Settle(RequestId id, Job& job) {
    const Status added = sides_[job.side]->AddAsIs(*job.homeless);
    if (added.ok()) {
      job.homeless.reset();
      return;
    }
    ASSERT_EQ(added.code(), StatusCode::kUnavailable) << id << ": " << added.ToString();
    ++counts_.refused;
  }

  std::optional<DetachedRequest> Detach(RequestId id, Job& job, std::optional<Duration> hold) {
    Listen();
    if (job.ended) return std::nullopt;
    auto left = scheduler(job.side).Detach(id, sides_[job.side]->now(), hold);
    scheduler(job.side).CheckIntegrity();
    EXPECT_TRUE(left.has_value());
    if (left) ExpectKnown(job, left->request);
    return left;
  }

  void Cold(RequestId id, Job& job) {
    auto left = Detach(id, job, std::nullopt);
    if (!left) return;
    ++counts_.cold;
    Place(id, job, static_cast<int>(rng_.Between(0, 1)), std::move(left->request));
  }

  void Warm(RequestId id, Job& job) {
    auto left = Detach(id, job, kHold);
    if (!left) return;
    left->request.imported_tokens = left->computed_tokens;
    counts_.warm += left->computed_tokens > 0;
    if (left->computed_tokens == 0) MayRelease(id, job.side);
    Place(id, job, 1 - job.side, std::move(left->request));
  }

  // What is held there serves no pull.
  void MayRelease(RequestId id, int side) {
    if (std::ranges::none_of(pulls_, [&](const Pulling& p) { return p.pull.id == id; })) {
      scheduler(side).ReleaseKv(id);
    }
  }

  void StartLive(RequestId id, Job& job) {
    Listen();
    if (job.ended) return;
    auto known = scheduler(job.side).Expose(id, sides_[job.side]->now(), kHold);
    scheduler(job.side).CheckIntegrity();
    ASSERT_TRUE(known.has_value());
    ExpectKnown(job, known->request);
    if (known->computed_tokens == 0) return;
    known->request.imported_tokens = known->computed_tokens;
    job.shared = known->request.resumed.front().output.size();
    if (!sides_[1 - job.side]->AddAsIs(std::move(known->request)).ok()) return;
    job.migrating = true;
    ++counts_.live;
  }

  // Another round; or the last, once the source is frozen.
  void Advance(RequestId id, Job& job) {
    const int from = job.side, to = 1 - job.side;
    Listen();
    if (job.ended || rng_.Between(0, 15) == 0) {
      scheduler(to).Detach(id, sides_[to]->now(), std::nullopt);
      scheduler(from).Thaw(id);
      job.migrating = false;
      ++counts_.broken;
      return;
    }
    const auto there = scheduler(to).Inspect(id, sides_[to]->now());
    ASSERT_TRUE(there.has_value());
    if (there->state != RequestState::kPulling) return;
    Collect(to);
    // All of its pulls may have been answered but the last, which is answered only after this.
    const bool last = rng_.Between(0, 2) == 0 && scheduler(from).Freeze(id);
    auto more = last ? scheduler(from).Detach(id, sides_[from]->now(), kHold)
                     : scheduler(from).Expose(id, sides_[from]->now(), kHold);
    ASSERT_TRUE(more.has_value());
    const auto& output = more->request.resumed.front().output;
    const std::vector<TokenId> fresh(output.begin() + static_cast<long>(job.shared), output.end());
    const Status extended = more->computed_tokens == 0
                                ? FailedPrecondition("its KV has gone")
                                : scheduler(to).ExtendImport(id, fresh, more->computed_tokens);
    scheduler(to).CheckIntegrity();
    job.shared = output.size();
    if (extended.ok()) {
      if (last) {
        job.side = to;
        job.migrating = false;
      }
      return;
    }
    ++counts_.broken;
    scheduler(to).Detach(id, sides_[to]->now(), std::nullopt);
    scheduler(from).Thaw(id);
    job.migrating = false;
    if (last) Place(id, job, static_cast<int>(rng_.Between(0, 1)), std::move(more->request));
  }

  void Listen() {
    for (int side : {0, 1}) {
      for (const RequestOutput& news : sides_[side]->TakeOutputs()) {
        Job& job = jobs_.at(news.request);
        ASSERT_EQ(job.side, side) << "news from where it is not";
        ASSERT_FALSE(job.homeless || job.ended);
        Told& told = job.told[static_cast<size_t>(news.index)];
        ASSERT_FALSE(told.finished);
        for (const TokenId token : news.tokens) told.tokens.push_back(token);
        told.prompt_logprobs += news.prompt_logprobs.size();
        told.finished = news.finish.has_value();
        job.ended = news.times.has_value();
        ASSERT_TRUE(news.error.ok());
      }
    }
  }

  void CheckEnd() {
    for (auto& [id, job] : jobs_) {
      for (int k = 0; k < job.question.params.n; ++k) {
        const Told& told = job.told[static_cast<size_t>(k)];
        ASSERT_EQ(told.tokens, Expected(job.question, k)) << "request " << id << ", " << k;
        ASSERT_EQ(told.prompt_logprobs,
                  job.question.params.prompt_logprobs ? job.question.prompt.size() - 1 : 0);
      }
      if (job.migrating) scheduler(1 - job.side).Detach(id, Time{}, std::nullopt);
    }
    for (int side : {0, 1}) Collect(side);
    while (!pulls_.empty()) {
      scheduler(pulls_.back().to).KvArrived(pulls_.back().pull.id, true, Time{});
      pulls_.pop_back();
    }
    for (auto& side : sides_) {
      for (const auto& [id, job] : jobs_) side->scheduler().ReleaseKv(id);
      side->RunToEnd();
      const SchedulerStats stats = side->scheduler().Stats();
      ASSERT_EQ(stats.blocks_free, stats.blocks_total);
      ASSERT_EQ(stats.host_blocks_used, 0);
    }
  }

  Rng& rng_;
  Counts& counts_;
  std::unique_ptr<Harness> sides_[2];
  std::vector<Job> coming_;
  std::map<RequestId, Job> jobs_;
  std::vector<Pulling> pulls_;
};

SchedulerOptions RandomOptions(Rng& rng, int blocks_least) {
  SchedulerOptions o;
  o.block_size = 4;
  o.max_model_len = 40;
  o.num_blocks = blocks_least + static_cast<int>(rng.Between(0, 12));
  o.num_host_blocks = static_cast<int>(rng.Between(0, 1) * rng.Between(1, 2 * o.num_blocks));
  o.max_num_seqs = static_cast<int>(rng.Between(4, 10));
  o.max_num_batched_tokens = static_cast<int>(rng.Between(1, 64));
  o.stages = static_cast<int>(rng.Between(1, 4));
  o.prefix_caching = rng.Between(0, 1);
  o.watermark = rng.Between(0, 1) ? 0.0 : 0.1;
  o.preemption = !o.num_host_blocks  ? PreemptionMode::kRecompute
                 : rng.Between(0, 1) ? PreemptionMode::kSwap
                                     : PreemptionMode::kAuto;
  o.eos_token_ids = {kQuestionEos};
  o.step_mix = rng.Between(0, 2) ? StepMix::kMixed : StepMix::kPrefillFirst;
  o.policy = rng.Between(0, 2) ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
  return o;
}

TEST(Moves, LoseNothingWhateverTheSchedule) {
  Counts counts;
  const uint64_t cases = 200 * TestScale();
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto questions = RandomQuestions(rng, static_cast<int>(rng.Between(2, 10)), 24, 16, 3);
    // The largest: 23 shared tokens and 3 tails.
    const SchedulerOptions options[2] = {RandomOptions(rng, 22), RandomOptions(rng, 22)};
    World(rng, questions, options, counts).Run();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(counts.cold, cases);
  EXPECT_GT(counts.warm, cases / 2);
  EXPECT_GT(counts.live, cases / 2);
  EXPECT_GT(counts.pulls, cases);
  std::printf("%lu cold, %lu warm, %lu live, %lu broken, %lu refused, %lu pulls\n", counts.cold,
              counts.warm, counts.live, counts.broken, counts.refused, counts.pulls);
}

}  // namespace
}  // namespace millrace::sched
