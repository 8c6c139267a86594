// Two schedulers, each with a stage of two layers, between which requests are moved at random:
// cold (their tokens are recomputed), warm (the KV of their sequences is pulled, at all layers or
// some) and live (pulled in rounds while they run). One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "sched/testing/harness.h"
#include "sched/testing/test_requests.h"

namespace millrace::sched {

inline constexpr Duration kMovesHold = Duration::Millis(500);
inline constexpr int kMovesBlockSize = 4;

struct Delivered {
  std::vector<TokenId> tokens;
  size_t prompt_logprobs = 0;
  std::vector<float> pooled;
  bool finished = false;
  bool aborted = false;
};

struct Job {
  TestRequest test_request;
  std::vector<Delivered> delivered;
  int side = 0;                        // the side that may deliver its output
  std::optional<NewRequest> homeless;  // refused for now
  std::vector<SequenceKv> left[2];     // what each side held last; n > 1
  bool ended = false;                  // its times were delivered
  // A live migration: the other side has the request and, of each sequence, this many tokens, and
  // it imports the KV of this many.
  bool migrating = false;
  std::vector<size_t> shared;
  std::vector<int> imported;
};

struct MoveCounts {
  uint64_t cold = 0, warm = 0, live = 0, broken = 0, refused = 0, pulls = 0, sibling_pulls = 0,
           partial = 0, aborted = 0, searches_again = 0;
};

class MovingWorld {
 public:
  MovingWorld(Rng& rng, const std::vector<TestRequest>& test_requests,
              const SchedulerOptions (&options)[2], MoveCounts& counts)
      : rng_(rng), counts_(counts) {
    for (int i = 0; i < 2; ++i) {
      sides_[i] = std::make_unique<Harness>(
          HarnessOptions{.scheduler = options[i], .vocab_size = kTestRequestVocab, .layers = 2});
    }
    for (const TestRequest& q : test_requests) {
      Job job{.test_request = q};
      job.delivered.resize(static_cast<size_t>(q.params.n));
      coming_.push_back(std::move(job));
    }
  }

  void Run() {
    for (int turn = 0; Work(); ++turn) {
      ASSERT_LT(turn, 20000) << "the requests do not end";
      const bool calm = turn > 2000;  // from then on requests end where they are
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
          case 5: AbortOne(id, job); break;
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
    r.prompt = std::make_shared<const std::vector<TokenId>>(job.test_request.prompt);
    r.params = std::make_shared<const SamplingParams>(job.test_request.params);
    r.seed = job.test_request.seed;
    r.client = std::to_string(r.seed % 4);
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
    for (KvPull& pull : sides_[side]->TakePulls()) {
      ++counts_.pulls;
      const Job& job = jobs_.at(pull.id);
      counts_.sibling_pulls += pull.index > 0 && !job.delivered[0].finished;
      pulls_.push_back({std::move(pull), side});
    }
  }

  void EndPull() {
    const size_t i = rng_.Next() % pulls_.size();
    const Pulling p = pulls_[i];
    Job& job = jobs_.at(p.pull.id);
    const auto same = std::ranges::count_if(pulls_, [&](const Pulling& other) {
      return other.pull.id == p.pull.id && other.to == p.to;
    });
    pulls_.erase(pulls_.begin() + static_cast<long>(i));
    const std::vector<BlockIndex> source = SourceOf(job, p);
    const bool there = std::ssize(source) * kMovesBlockSize >= p.pull.end_token;
    const LayerRange lacking = there ? SomeLayers() : LayerRange{0, 2};
    for (int layer : {0, 1}) {
      if (lacking.Contains(layer)) continue;
      sides_[p.to]->model(layer).Pull(sides_[1 - p.to]->model(layer), source, p.pull.blocks,
                                      p.pull.first_token, p.pull.end_token);
    }
    const Time now = sides_[p.to]->now();
    if (there && lacking != LayerRange{0, 0} && rng_.Between(0, 3) != 0) {
      scheduler(p.to).KvArrivedWithout(p.pull.id, lacking, now);
      ++counts_.partial;
    } else {
      scheduler(p.to).KvArrived(p.pull.id, lacking == LayerRange{0, 0}, now);
    }
    scheduler(p.to).CheckIntegrity();
    const bool runs_there = job.migrating && job.side != p.to;
    if (same == 1 && !runs_there) scheduler(1 - p.to).ReleaseKv(p.pull.id);
  }

  // The source's table of the pulled tokens, if it still holds them.
  std::vector<BlockIndex> SourceOf(const Job& job, const Pulling& p) {
    auto held = scheduler(1 - p.to).HeldBlocks(p.pull.id);
    if (job.test_request.params.n == 1) return held;
    const std::vector<SequenceKv>& left = job.left[1 - p.to];
    if (left.empty() || !Contains(held, Distinct(left))) return {};
    const SequenceKv& kv = left[static_cast<size_t>(p.pull.index)];
    return kv.tokens >= p.pull.end_token ? kv.blocks : std::vector<BlockIndex>();
  }

  // Usually none.
  LayerRange SomeLayers() {
    switch (rng_.Between(0, 9)) {
      case 0: return {0, 1};
      case 1: return {1, 2};
      case 2: return {0, 2};
      default: return {0, 0};
    }
  }

  static std::vector<BlockIndex> Distinct(const std::vector<SequenceKv>& kv) {
    std::vector<BlockIndex> blocks;
    for (const SequenceKv& s : kv) {
      for (BlockIndex b : s.blocks) {
        if (std::ranges::find(blocks, b) == blocks.end()) blocks.push_back(b);
      }
    }
    return blocks;
  }

  // Blocks of sequences that have ended may be held beside those of the others.
  static bool Contains(const std::vector<BlockIndex>& held, const std::vector<BlockIndex>& some) {
    return std::ranges::all_of(
        some, [&](BlockIndex b) { return std::ranges::find(held, b) != held.end(); });
  }

  void ExpectKnown(const Job& job, const NewRequest& r) {
    ASSERT_EQ(r.resumed.size(), job.delivered.size());
    if (r.params->beam_search) {  // it delivers nothing before its end
      ASSERT_TRUE(r.beams);
      return;
    }
    for (size_t k = 0; k < job.delivered.size(); ++k) {
      ASSERT_EQ(r.resumed[k].output, job.delivered[k].tokens);
      ASSERT_EQ(r.resumed[k].finished, job.delivered[k].finished);
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
    if (left && hold && !left->kv.empty()) {
      EXPECT_TRUE(Contains(scheduler(job.side).HeldBlocks(id), Distinct(left->kv)));
      job.left[job.side] = left->kv;
    }
    return left;
  }

  void Cold(RequestId id, Job& job) {
    auto left = Detach(id, job, std::nullopt);
    if (!left) return;
    ++counts_.cold;
    if (left->request.beams && rng_.Between(0, 1)) {  // as after the loss of the controller
      left->request.beams.reset();
      left->request.resumed.assign(job.delivered.size(), {});
      ++counts_.searches_again;
    }
    Place(id, job, static_cast<int>(rng_.Between(0, 1)), std::move(left->request));
  }

  void Warm(RequestId id, Job& job) {
    auto left = Detach(id, job, kMovesHold);
    if (!left) return;
    for (const SequenceKv& s : left->kv) left->request.imported_tokens.push_back(s.tokens);
    // One sequence's KV may be skipped, entirely or in part.
    if (!left->kv.empty() && rng_.Between(0, 3) == 0) {
      int& some = left->request.imported_tokens[rng_.Next() % left->kv.size()];
      some = static_cast<int>(rng_.Between(0, some));
    }
    counts_.warm += left->computed_tokens() > 0;
    if (left->computed_tokens() == 0) MayRelease(id, job.side);
    Place(id, job, 1 - job.side, std::move(left->request));
  }

  // Releases KV that no pull reads.
  void MayRelease(RequestId id, int side) {
    if (std::ranges::none_of(pulls_, [&](const Pulling& p) { return p.pull.id == id; })) {
      scheduler(side).ReleaseKv(id);
    }
  }

  void StartLive(RequestId id, Job& job) {
    Listen();
    if (job.ended) return;
    auto known = scheduler(job.side).Export(id, sides_[job.side]->now(), kMovesHold);
    scheduler(job.side).CheckIntegrity();
    ASSERT_TRUE(known.has_value());
    ExpectKnown(job, known->request);
    if (known->kv.empty()) return MayRelease(id, job.side);
    EXPECT_TRUE(Contains(scheduler(job.side).HeldBlocks(id), Distinct(known->kv)));
    job.shared.clear();
    job.imported.clear();
    for (size_t k = 0; k < known->kv.size(); ++k) {
      const bool ended = known->request.resumed[k].finished;
      if (!ended && known->kv[k].tokens < kMovesBlockSize) return MayRelease(id, job.side);
      job.shared.push_back(known->request.resumed[k].output.size());
      job.imported.push_back(ended ? 0 : known->kv[k].tokens);
    }
    job.left[job.side] = known->kv;
    known->request.imported_tokens = job.imported;
    known->request.import_open = true;
    if (!sides_[1 - job.side]->AddAsIs(std::move(known->request)).ok()) return;
    job.migrating = true;
    ++counts_.live;
  }

  void AbortOne(RequestId id, Job& job) {
    Listen();
    const auto k = static_cast<size_t>(rng_.Between(0, job.test_request.params.n - 1));
    if (job.ended || job.delivered.size() == 1 || job.delivered[k].finished) return;
    if (job.test_request.params.beam_search) return;
    job.delivered[k].aborted = true;
    sides_[job.side]->Abort(id, static_cast<int>(k));
    ++counts_.aborted;
  }

  // Another round, or the last one if the source is paused.
  void Advance(RequestId id, Job& job) {
    const int from = job.side, to = 1 - job.side;
    Listen();
    if (job.ended || rng_.Between(0, 15) == 0) {
      scheduler(to).Detach(id, sides_[to]->now(), std::nullopt);
      scheduler(from).Unpause(id);
      job.migrating = false;
      ++counts_.broken;
      return;
    }
    const auto there = scheduler(to).Inspect(id, sides_[to]->now());
    ASSERT_TRUE(there.has_value());
    if (there->state != RequestState::kPulling) return;
    bool last = rng_.Between(0, 2) == 0;
    if (last) scheduler(from).Pause(id);
    last = last && scheduler(from).AtRest(id);
    auto more = last ? scheduler(from).Detach(id, sides_[from]->now(), kMovesHold)
                     : scheduler(from).Export(id, sides_[from]->now(), kMovesHold);
    ASSERT_TRUE(more.has_value());
    const bool gone = more->kv.empty();
    std::vector<ResumedSequence> news;
    for (size_t k = 0; k < job.shared.size(); ++k) {
      const ResumedSequence& known = more->request.resumed[k];
      news.push_back({{known.output.begin() + static_cast<long>(job.shared[k]), known.output.end()},
                      known.finished});
      job.shared[k] = known.output.size();
      if (!gone) job.imported[k] = std::max(job.imported[k], more->kv[k].tokens);
    }
    if (!gone) job.left[from] = more->kv;
    const Status extended = gone ? FailedPrecondition("its KV is gone")
                                 : sides_[to]->ExtendImport(id, news, job.imported);
    if (extended.ok()) {
      if (last) {
        scheduler(to).CloseImport(id, sides_[to]->now());
        scheduler(to).CheckIntegrity();
        job.side = to;
        job.migrating = false;
      }
      return;
    }
    ++counts_.broken;
    scheduler(to).Detach(id, sides_[to]->now(), std::nullopt);
    scheduler(from).Unpause(id);
    job.migrating = false;
    if (last) Place(id, job, static_cast<int>(rng_.Between(0, 1)), std::move(more->request));
  }

  void Listen() {
    for (int side : {0, 1}) {
      for (const RequestOutput& output : sides_[side]->TakeOutputs()) {
        Job& job = jobs_.at(output.request);
        ASSERT_EQ(job.side, side) << "output from the wrong side";
        ASSERT_FALSE(job.homeless || job.ended);
        Delivered& delivered = job.delivered[static_cast<size_t>(output.index)];
        ASSERT_FALSE(delivered.finished);
        for (const TokenId token : output.tokens) delivered.tokens.push_back(token);
        delivered.prompt_logprobs += output.prompt_logprobs.size();
        if (!output.pooled.empty()) delivered.pooled = output.pooled;
        delivered.finished = output.finish.has_value();
        job.ended = output.times.has_value();
        ASSERT_TRUE(output.error.ok());
      }
    }
  }

  void CheckEnd() {
    for (auto& [id, job] : jobs_) {
      for (int k = 0; k < job.test_request.params.n; ++k) {
        const Delivered& delivered = job.delivered[static_cast<size_t>(k)];
        auto expected = Expected(job.test_request, k);
        if (delivered.aborted) {
          ASSERT_LE(delivered.tokens.size(), expected.size());
          expected.resize(delivered.tokens.size());
          ASSERT_EQ(delivered.tokens, expected) << "request " << id << ", " << k;
          continue;
        }
        ASSERT_EQ(delivered.tokens, expected) << "request " << id << ", " << k;
        ASSERT_EQ(delivered.pooled, ExpectedVector(job.test_request)) << "request " << id;
        ASSERT_EQ(delivered.prompt_logprobs,
                  job.test_request.params.prompt_logprobs ? job.test_request.prompt.size() - 1 : 0);
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
  MoveCounts& counts_;
  std::unique_ptr<Harness> sides_[2];
  std::vector<Job> coming_;
  std::map<RequestId, Job> jobs_;
  std::vector<Pulling> pulls_;
};

}  // namespace millrace::sched
