// The Orca paper (OSDI'22): Algorithm 1 traced and re-implemented naively, its invariants over
// random schedules, its worked examples. KV policy `orca`, no limit on chunks, one slot per block.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "sched/scheduler.h"

namespace millrace::sched {
namespace {

constexpr TokenId kOrcaEos = 1;

SchedulerOptions OrcaOptions(int workers, int max_bs, int slots) {
  SchedulerOptions o;
  o.block_size = 1;
  o.num_blocks = slots;
  o.max_num_seqs = max_bs;
  o.max_num_batched_tokens = 1 << 20;
  o.max_model_len = slots + 1;
  o.stages = workers;
  o.kv_policy = KvPolicy::kOrca;
  o.prefix_caching = false;
  o.eos_token_ids = {kOrcaEos};
  return o;
}

struct Job {
  int prompt = 1;
  int limit = 1;    // maximum of generated tokens
  int actual = 1;   // EOS is this token, if within the limit
  int arrival = 0;  // the round before which it arrives
};

// The real scheduler behind a loop like Algorithm 1's; sequence k of the trace is job k.
class Real {
 public:
  Real(const SchedulerOptions& options, const std::vector<Job>& jobs)
      : scheduler_(std::move(Scheduler::Create(options)).value()), jobs_(jobs) {}

  bool Arrive(int job) {
    SamplingParams params;
    params.max_tokens = jobs_[job].limit;
    return scheduler_
        ->Add({.id = RequestId(job + 1),
               .prompt = std::make_shared<const std::vector<TokenId>>(jobs_[job].prompt, 2),
               .params = std::make_shared<const SamplingParams>(params)},
              Time{})
        .ok();
  }

  // The batch as jobs in order, empty when there is none.
  std::vector<int> Select() {
    std::vector<int> batch;
    const StepPlan* plan = scheduler_->Schedule(Time{});
    if (!plan) return batch;
    for (const SequenceStep& s : plan->sequences) {
      batch.push_back(static_cast<int>(s.id.value()) - 1);
      last_plan_tokens.push_back(s.num_tokens);
    }
    flights_.push_back({plan->id, batch});
    return batch;
  }

  // The oldest batch returns; returns the finished jobs.
  std::set<int> Return() {
    const auto [id, batch] = flights_.front();
    flights_.pop_front();
    StepResult result{.id = id};
    for (int job : batch) {
      const bool last = ++iterations[job] == jobs_[job].actual;
      result.sequences.push_back({.id = SequenceId(job + 1), .token = last ? kOrcaEos : 9});
    }
    std::vector<RequestOutput> outputs;
    scheduler_->Commit(result, Time{}, outputs);
    scheduler_->CheckIntegrity();
    std::set<int> finished;
    for (const RequestOutput& o : outputs) {
      if (o.finish) finished.insert(static_cast<int>(o.request.value()) - 1);
    }
    return finished;
  }

  int in_flight() const { return static_cast<int>(flights_.size()); }
  const Scheduler& scheduler() const { return *scheduler_; }
  std::map<int, int> iterations;
  std::vector<int> last_plan_tokens;

 private:
  struct Flight {
    StepId id;
    std::vector<int> batch;
  };
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Job> jobs_;
  std::deque<Flight> flights_;
};

// Algorithm 1, line by line.
class Algorithm1 {
 public:
  Algorithm1(int n_slots, int max_bs, const std::vector<Job>& jobs)
      : n_slots_(n_slots), max_bs_(max_bs), jobs_(jobs) {}

  void Arrive(int job) { pool_[job] = kInitiation; }

  std::vector<int> Select() {
    std::vector<int> batch;
    for (auto& [job, state] : pool_) {  // by arrival
      if (state == kRunning) continue;
      if (std::ssize(batch) == max_bs_) break;
      if (state == kInitiation) {
        const int reserved = n_rsrv_ + MaxTokens(job);
        if (reserved > n_slots_) break;
        n_rsrv_ = reserved;
      }
      batch.push_back(job);
    }
    for (int job : batch) pool_[job] = kRunning;
    if (!batch.empty()) flights_.push_back(batch);
    return batch;
  }

  std::set<int> Return() {
    std::set<int> finished;
    for (int job : flights_.front()) {
      pool_[job] = kIncrement;
      const int done = ++iterations_[job];
      if (done < std::min(jobs_[job].actual, jobs_[job].limit)) continue;
      n_rsrv_ -= MaxTokens(job);
      pool_.erase(job);
      finished.insert(job);
    }
    flights_.pop_front();
    return finished;
  }

  int reserved() const { return n_rsrv_; }
  bool empty() const { return pool_.empty(); }

 private:
  enum State { kInitiation, kRunning, kIncrement };
  int MaxTokens(int job) const { return jobs_[job].prompt + jobs_[job].limit; }

  int n_slots_, max_bs_;
  std::vector<Job> jobs_;
  int n_rsrv_ = 0;
  std::map<int, State> pool_;
  std::map<int, int> iterations_;
  std::deque<std::vector<int>> flights_;
};

// Section 4.2, figure 8a: three workers, max_bs 2. AB, CD, EF are issued, then the scheduler waits;
// AB returns and is issued again.
TEST(OrcaFigure8, PipelineOfThreeWorkers) {
  const std::vector<Job> jobs(6, Job{.prompt = 3, .limit = 10, .actual = 10});
  Real real(OrcaOptions(3, 2, 1000), jobs);
  for (int job = 0; job < 6; ++job) ASSERT_TRUE(real.Arrive(job));
  const std::vector<int> ab = {0, 1}, cd = {2, 3}, ef = {4, 5};
  EXPECT_EQ(real.Select(), ab);
  EXPECT_EQ(real.Select(), cd);
  EXPECT_EQ(real.Select(), ef);
  for (const auto& next : {ab, cd, ef, ab, cd}) {
    EXPECT_EQ(real.Select(), std::vector<int>{}) << "three batches in flight: wait";
    EXPECT_EQ(real.Return(), std::set<int>{});
    EXPECT_EQ(real.Select(), next);
  }
}

// Section 3.2, figure 4: x1 (3 tokens) and x3 (2) start while x2 and x4 generate: one step of 7
// tokens, rows 3, 1, 2, 1.
TEST(OrcaFigure4, SelectiveBatchingPlan) {
  SchedulerOptions options = OrcaOptions(1, 8, 1000);
  options.policy = SchedulingPolicy::kPriority;  // x1 and x3 arrive later and rank before x2 and x4
  options.kv_policy = KvPolicy::kPaged;
  auto scheduler = std::move(Scheduler::Create(options)).value();
  std::vector<RequestOutput> outputs;
  const auto add = [&](uint64_t id, int tokens, int priority) {
    ASSERT_TRUE(scheduler
                    ->Add({.id = RequestId(id),
                           .prompt = std::make_shared<const std::vector<TokenId>>(tokens, 2),
                           .params = std::make_shared<const SamplingParams>(),
                           .priority = priority},
                          Time{})
                    .ok());
  };
  add(2, 4, 2);
  add(4, 3, 4);
  const StepPlan* plan = scheduler->Schedule(Time{});
  StepResult result{.id = plan->id};
  for (const auto& s : plan->sequences) result.sequences.push_back({.id = s.id, .token = 9});
  scheduler->Commit(result, Time{}, outputs);
  add(1, 3, 1);
  add(3, 2, 3);
  plan = scheduler->Schedule(Time{});
  std::map<uint64_t, int> rows;  // tokens by request
  const std::map<uint64_t, uint64_t> request_of = {{1, 2}, {2, 4}, {3, 1}, {4, 3}};
  for (const auto& s : plan->sequences) rows[request_of.at(s.id.value())] = s.num_tokens;
  EXPECT_EQ(rows, (std::map<uint64_t, int>{{1, 3}, {2, 1}, {3, 2}, {4, 1}}));
  EXPECT_EQ(plan->tokens.size(), 7u);
}

struct RandomCase {
  int workers, max_bs, slots;
  std::vector<Job> jobs;
};

RandomCase MakeCase(uint64_t seed) {
  Rng rng(seed);
  RandomCase c;
  c.workers = static_cast<int>(rng.Between(1, 5));
  c.max_bs = static_cast<int>(rng.Between(1, 6));
  c.slots = static_cast<int>(rng.Between(12, 60));
  const bool same_shape = rng.Between(0, 2) == 0;
  const Job shape{.prompt = 3, .limit = static_cast<int>(rng.Between(1, 5)), .actual = 9};
  for (int64_t k = rng.Between(1, 10); k > 0; --k) {
    Job job{.prompt = static_cast<int>(rng.Between(1, 6)),
            .limit = static_cast<int>(rng.Between(1, 6))};
    job.actual = static_cast<int>(rng.Between(1, 8));
    if (same_shape) job = shape;
    job.arrival = static_cast<int>(rng.Between(0, 12));
    c.jobs.push_back(job);
  }
  std::ranges::stable_sort(c.jobs, {}, &Job::arrival);
  return c;
}

// Section 4.2, Algorithm 1: the same batches as the listing, and invariants I1 to I6.
void CheckCase(uint64_t seed) {
  const RandomCase c = MakeCase(seed);
  Real real(OrcaOptions(c.workers, c.max_bs, c.slots), c.jobs);
  Algorithm1 naive(c.slots, c.max_bs, c.jobs);
  size_t arrived = 0;
  std::set<int> finished;
  for (int round = 0; arrived < c.jobs.size() || !naive.empty(); ++round) {
    ASSERT_LT(round, 500) << "no end";
    for (; arrived < c.jobs.size() && c.jobs[arrived].arrival <= round; ++arrived) {
      ASSERT_TRUE(real.Arrive(static_cast<int>(arrived)));
      naive.Arrive(static_cast<int>(arrived));
    }
    while (real.in_flight() < c.workers) {
      const std::vector<int> batch = real.Select();
      ASSERT_EQ(batch, naive.Select());
      ASSERT_LE(std::ssize(batch), c.max_bs);                                 // I5
      ASSERT_EQ(real.scheduler().Stats().blocks_reserved, naive.reserved());  // I2
      ASSERT_LE(naive.reserved(), c.slots);
      if (batch.empty()) break;
    }
    ASSERT_LE(real.in_flight(), c.workers);  // I4; I3 is part of CheckIntegrity
    if (real.in_flight() == 0) continue;
    const auto ended = real.Return();
    ASSERT_EQ(ended, naive.Return());  // I6: reported with its own last iteration
    finished.insert(ended.begin(), ended.end());
    // I1: of two that have not finished, the earlier has had at least as many iterations.
    int least = INT32_MAX;
    for (size_t job = 0; job < arrived; ++job) {
      if (finished.contains(static_cast<int>(job))) continue;
      ASSERT_LE(real.iterations[static_cast<int>(job)], least) << "job " << job << " overtook";
      least = std::min(least, real.iterations[static_cast<int>(job)]);
    }
  }
  EXPECT_EQ(finished.size(), c.jobs.size());
  const SchedulerStats stats = real.scheduler().Stats();
  EXPECT_EQ(stats.preemptions_recompute + stats.preemptions_swap, 0u);
  EXPECT_EQ(stats.blocks_reserved, 0);
  EXPECT_EQ(stats.blocks_free, c.slots);
}

// The full suite checks more than 10^5 schedules.
TEST(OrcaAlgorithm1, RandomSchedulesEqualTheListing) {
  const uint64_t cases = 4000 * TestScale();
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CheckCase(seed);
    if (testing::Test::HasFailure()) return;
  }
}

// Hole (a) of the listing: a request of more than n_slots would block the head of the queue
// forever.
TEST(OrcaAlgorithm1, MoreThanAllSlotsIsRefusedAtOnce) {
  const std::vector<Job> jobs = {{.prompt = 90, .limit = 11}, {.prompt = 90, .limit = 10}};
  Real real(OrcaOptions(1, 4, 100), jobs);
  EXPECT_FALSE(real.Arrive(0));
  EXPECT_TRUE(real.Arrive(1));
  EXPECT_EQ(real.Select(), std::vector<int>{0}) << "the first sequence the scheduler made";
}

// Section 2: allocating without reservation deadlocks when two requests each hold what the other
// needs. With 10 slots and two requests of 6, the second waits and both finish.
TEST(OrcaAlgorithm1, TheDeadlockOfNaiveAllocationCannotHappen) {
  const std::vector<Job> jobs(2, Job{.prompt = 2, .limit = 4, .actual = 9});
  Real real(OrcaOptions(1, 4, 10), jobs);
  ASSERT_TRUE(real.Arrive(0));
  ASSERT_TRUE(real.Arrive(1));
  std::set<int> finished;
  for (int round = 0; round < 8; ++round) {
    const auto batch = real.Select();
    EXPECT_EQ(batch, std::vector<int>{round < 4 ? 0 : 1});
    finished.merge(real.Return());
  }
  EXPECT_EQ(finished.size(), 2u);
}

// Holes (c) and (d): an early EOS releases the whole reservation; a request aborted in flight keeps
// its reservation until its batch returns.
TEST(OrcaAlgorithm1, ReservationsEndExactlyOnce) {
  const std::vector<Job> jobs = {{.prompt = 4, .limit = 20, .actual = 2},
                                 {.prompt = 4, .limit = 20, .actual = 20}};
  Real real(OrcaOptions(2, 4, 100), jobs);
  ASSERT_TRUE(real.Arrive(0));
  ASSERT_TRUE(real.Arrive(1));
  real.Select();
  real.Return();
  EXPECT_EQ(real.scheduler().Stats().blocks_reserved, 48);
  real.Select();
  std::vector<RequestOutput> outputs;
  const_cast<Scheduler&>(real.scheduler()).Abort(RequestId(2), std::nullopt, Time{}, outputs);
  EXPECT_EQ(real.scheduler().Stats().blocks_reserved, 48) << "both are in flight";
  EXPECT_EQ(real.Return(), std::set<int>{0});
  EXPECT_EQ(real.scheduler().Stats().blocks_reserved, 0);
}

}  // namespace
}  // namespace millrace::sched
