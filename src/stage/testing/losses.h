// For tests of recomputation: test requests for the hash model, and a pipeline through its stages,
// some of which are lost. It acts as a controller would then, with production schedulers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sched/scheduler.h"
#include "stage/activation_caching_stage.h"
#include "stage/testing/hash_stage.h"

namespace millrace::stage {

inline const HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};

struct TestRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
  std::vector<TokenId> Answer(int index) const {
    return HashReference(kModel, prompt, params, SequenceSeed(seed, index), *params.max_tokens, {});
  }
};

inline std::vector<TestRequest> TestRequests(Rng& rng, int count) {
  std::vector<TestRequest> test_requests(static_cast<size_t>(count));
  for (TestRequest& q : test_requests) {
    // Few distinct tokens: prefixes are shared.
    for (int64_t i = rng.Between(4, 40); i > 0; --i) {
      q.prompt.push_back(static_cast<TokenId>(rng.Between(0, 1)));
    }
    q.params.max_tokens = static_cast<int>(rng.Between(2, 30));
    q.params.n = static_cast<int>(rng.Between(1, 4));
    q.seed = rng.Next();
  }
  return test_requests;
}

using Cut = std::vector<LayerRange>;

// A pipeline through stages of the hash model, some of which are lost now and then; the next
// pipeline may cut the layers differently.
class Way {
 public:
  Way(Cut ranges, int num_blocks, size_t activation_bytes_max)
      : ranges_(std::move(ranges)), activation_bytes_max_(activation_bytes_max) {
    options_.block_size = 4;
    options_.num_blocks = num_blocks;
    options_.num_host_blocks = 8;
    options_.max_num_seqs = 8;
    options_.max_num_batched_tokens = 16;
    options_.max_model_len = 80;
    computed_.resize(static_cast<size_t>(kModel.num_layers));
    hops_.resize(ranges_.size());
    Open();
  }

  void Add(uint64_t id, const TestRequest& q) {
    Add({.id = RequestId(id),
         .prompt = std::make_shared<const std::vector<TokenId>>(q.prompt),
         .params = std::make_shared<const SamplingParams>(q.params),
         .seed = q.seed});
  }

  bool Turn() {
    for (;;) {
      const StepPlan* plan = scheduler_->Schedule({}, pulls_).plan;
      if (plan != nullptr) in_flight_.push_back(*plan);
      Fetch();
      if (plan == nullptr) break;
    }
    if (in_flight_.empty()) return scheduler_->HasWork();
    EXPECT_TRUE(
        scheduler_->Commit(Run(in_flight_.front(), hops_.size()), {}, outputs_, pulls_).ok());
    in_flight_.pop_front();
    scheduler_->CheckIntegrity();
    return true;
  }

  // Of the steps in progress the first hops may have run one more.
  void Lose(const std::set<size_t>& lost, Rng& rng, std::optional<Cut> cut = {}) {
    if (!in_flight_.empty()) {
      Run(in_flight_.front(),
          static_cast<size_t>(rng.Between(0, static_cast<int64_t>(hops_.size()))));
    }
    in_flight_.clear();
    left_.clear();
    entered_.clear();
    std::map<RequestId, sched::DetachedRequest> known;
    for (const RequestId id : alive_) {
      if (auto here = scheduler_->Peek(id)) known.emplace(id, std::move(*here));
    }
    std::vector<sched::DetachedRequest> all = scheduler_->DetachAll({});
    for (size_t h = 0; h < hops_.size(); ++h) {
      if (lost.contains(h)) hops_[h].reset();
      if (hops_[h] && left_pipeline_) hops_[h]->ClosePipeline(*left_pipeline_);
    }
    left_pipeline_ = pipeline_;
    left_hops_ = hops_;
    left_ranges_ = ranges_;
    if (cut) {  // each worker gets another stage, in addition to its present one
      ranges_ = *cut;
      hops_.assign(ranges_.size(), nullptr);
    }
    Open();
    for (sched::DetachedRequest& d : all) {
      const RequestId id = d.request.id;
      if (!known.at(id).kv.empty()) {
        for (const sched::SequenceKv& s : known.at(id).kv) {
          d.request.imported_tokens.push_back(s.tokens);
        }
        left_.emplace(id, std::move(known.at(id)));
      }
      Add(std::move(d.request));
    }
  }

  std::vector<TokenId> TokensOf(uint64_t id, int index) const {
    std::vector<TokenId> tokens;
    for (const RequestOutput& out : outputs_) {
      if (out.request != RequestId(id) || out.index != index) continue;
      tokens.insert(tokens.end(), out.tokens.begin(), out.tokens.end());
    }
    return tokens;
  }
  const std::vector<int64_t>& computed() const { return computed_; }
  const std::set<int>& lacking_begins() const { return lacking_begins_; }
  int lost_again() const { return lost_again_; }
  size_t kept_bytes() const {
    size_t bytes = 0;
    for (const auto& hop : hops_) bytes += hop->kept_bytes();
    return bytes;
  }

 private:
  void Open() {
    pipeline_ = PipelineId(pipeline_.value() + 1);
    tables_ = {};
    options_.stages = static_cast<int>(ranges_.size());
    scheduler_ = std::move(sched::Scheduler::Create(options_)).value();
    for (size_t h = 0; h < hops_.size(); ++h) {
      if (!hops_[h]) {
        hops_[h] = std::make_shared<ActivationCachingStage>(
            std::make_shared<HashStage>(kModel, ranges_[h]), activation_bytes_max_);
      }
      const Status opened =
          hops_[h]->OpenPipeline(pipeline_, {.layers = ranges_[h],
                                             .block_size = options_.block_size,
                                             .num_blocks = options_.num_blocks,
                                             .num_host_blocks = options_.num_host_blocks,
                                             .first = h == 0,
                                             .last = h + 1 == hops_.size(),
                                             .cache_activations_at = KeepRowsAt(h)});
      ASSERT_TRUE(opened.ok()) << opened.ToString();
    }
  }

  std::vector<int> KeepRowsAt(size_t hop) const {
    return hop + 1 < hops_.size() ? std::vector{ranges_[hop].end} : std::vector<int>{};
  }

  void Add(sched::NewRequest request) {
    alive_.insert(request.id);
    const Status added = scheduler_->Add(std::move(request), {});
    ASSERT_TRUE(added.ok()) << added.ToString();
  }

  StepResult Run(const StepPlan& plan, size_t hops) {
    const std::span<const SequenceView> sequences = tables_.Advance(plan);
    std::vector<std::byte> rows;
    StepResult result;
    for (size_t h = 0; h < hops; ++h) {
      StagePart part{.pipeline = pipeline_, .plan = &plan, .sequences = sequences, .input = rows};
      const Status ran = hops_[h]->Run({&part, 1});
      EXPECT_TRUE(ran.ok() && part.result.error.ok()) << part.result.error.ToString();
      for (const SequenceView& s : sequences) {
        const LayerRange ran = s.RunsAt(ranges_[h]);
        for (int l = ran.begin; l < ran.end; ++l) {
          computed_[static_cast<size_t>(l)] += s.num_tokens();
        }
      }
      rows = std::move(part.output);
      result = std::move(part.result);
    }
    return result;
  }

  // Fetches as a controller does: from the lost pipeline, hop by hop.
  void Fetch() {
    for (const sched::KvPull& pull : std::exchange(pulls_, {})) {
      std::vector<bool> has(static_cast<size_t>(kModel.num_layers));
      std::set<int> rows;  // by the layer they enter
      for (size_t l = 0; l < left_hops_.size(); ++l) {
        for (size_t h = 0; left_hops_[l] && h < hops_.size(); ++h) FetchFrom(l, h, pull, has, rows);
      }
      if (const auto& lacked = left_.at(pull.id).lacking) {  // lost while it was recomputed
        for (int l = lacked->begin; l < lacked->end; ++l) has[static_cast<size_t>(l)] = false;
        ++lost_again_;
      }
      // What all of the request's sequences have.
      const auto [all, first] = entered_.try_emplace(pull.id, rows);
      if (!first) std::erase_if(all->second, [&](int layer) { return !rows.contains(layer); });
      LayerRange lacking;
      for (int l = 0; l < kModel.num_layers; ++l) {
        if (has[static_cast<size_t>(l)]) continue;
        if (lacking.size() == 0) lacking.begin = l;
        lacking.end = l + 1;
      }
      while (lacking.begin > 0 && !all->second.contains(lacking.begin)) --lacking.begin;
      if (lacking.size() == 0) {
        scheduler_->KvArrived(pull.id, true, {});
      } else {
        lacking_begins_.insert(lacking.begin);
        scheduler_->KvArrivedWithout(pull.id, lacking, {});
      }
    }
  }

  void FetchFrom(size_t left, size_t hop, const sched::KvPull& pull, std::vector<bool>& has,
                 std::set<int>& rows) {
    const LayerRange from = left_ranges_[left], to = ranges_[hop];
    const LayerRange both = from.Overlap(to);
    if (both.size() == 0) return;
    const std::vector<BlockIndex>& blocks =
        left_.at(pull.id).kv[static_cast<size_t>(pull.index)].blocks;
    Copy(*left_hops_[left], *hops_[hop],
         KvBox{both, 0, kModel.heads, pull.first_token, pull.end_token}, blocks, pull.blocks);
    for (int l = both.begin; l < both.end; ++l) has[static_cast<size_t>(l)] = true;
    if (both.end != from.end || both.end == kModel.num_layers) return;
    const bool computes_behind = !left_hops_[left + 1];
    if (both.end != to.end && !computes_behind) return;
    const ActivationRange activations{both.end, pull.first_token, pull.end_token};
    Copy(*left_hops_[left], *hops_[hop], activations, blocks, pull.blocks);
    if (hops_[hop]->HoldsActivations(pipeline_, activations, pull.blocks)) rows.insert(both.end);
  }

  void Copy(const Stage& source, Stage& stage, const TransferItem& item,
            const std::vector<BlockIndex>& from, const std::vector<BlockIndex>& to) {
    std::vector<std::byte> bytes(stage.Bytes(item));
    if (bytes.empty()) return;
    if (!source.Read(*left_pipeline_, item, from, bytes).ok()) {
      EXPECT_TRUE(std::holds_alternative<ActivationRange>(item))
          << "KV must exist, activations need not";
      return;
    }
    const Status written = stage.Write(pipeline_, item, to, bytes);
    EXPECT_TRUE(written.ok()) << written.ToString();
  }

  Cut ranges_, left_ranges_;
  const size_t activation_bytes_max_;
  sched::SchedulerOptions options_;
  PipelineId pipeline_{0};
  SequenceTables tables_;
  std::optional<PipelineId> left_pipeline_;
  std::map<RequestId, sched::DetachedRequest> left_;
  std::map<RequestId, std::set<int>> entered_;  // layers whose activations have arrived
  std::vector<std::shared_ptr<ActivationCachingStage>> hops_, left_hops_;  // null: lost
  std::vector<int64_t> computed_;                                          // tokens, by layer
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::deque<StepPlan> in_flight_;
  std::set<RequestId> alive_;
  std::set<int> lacking_begins_;
  int lost_again_ = 0;
  std::vector<RequestOutput> outputs_;
  std::vector<sched::KvPull> pulls_;
};

}  // namespace millrace::stage
