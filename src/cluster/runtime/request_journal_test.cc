// Requests over several runs of a controller: when a run ends, the next one delivers the rest.
#include "cluster/runtime/request_journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <thread>

#include "base/rng.h"
#include "base/testing/temp_folder.h"
#include "base/testing/test_scale.h"
#include "cluster/runtime/local_cluster.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster::testing {
namespace {

const stage::HashModel kModel{.num_layers = 4, .vocab_size = 200, .heads = 2, .seed = 5};
constexpr TokenId kEos = 7;
constexpr Duration kNever = Duration::Seconds(1e9);

using Tokens = std::vector<std::vector<TokenId>>;  // by continuation

// What clients received, over all runs; any thread.
class Clients {
 public:
  OutputSink Sink() {
    return [this](RequestOutput&& output) { Take(output); };
  }
  void Take(const RequestOutput& output) {
    std::lock_guard lock(mutex_);
    Tokens& tokens = delivered_[output.request];
    tokens.resize(std::max(tokens.size(), static_cast<size_t>(output.index) + 1));
    auto& mine = tokens[static_cast<size_t>(output.index)];
    mine.insert(mine.end(), output.tokens.begin(), output.tokens.end());
    count_ += std::ssize(output.tokens);
    if (output.times) ++over_;
    if (!output.error.ok()) errors_.push_back(output.error);
    changed_.notify_all();
  }
  bool WaitForTokens(int64_t count) {
    return WaitUntil([&] { return count_ >= count; });
  }
  bool WaitForEnds(int64_t count) {
    return WaitUntil([&] { return over_ >= count; });
  }
  std::map<RequestId, Tokens> delivered() {
    std::lock_guard lock(mutex_);
    return delivered_;
  }
  std::vector<Status> errors() {
    std::lock_guard lock(mutex_);
    return errors_;
  }
  void Forget() {
    std::lock_guard lock(mutex_);
    delivered_.clear();
    count_ = over_ = 0;
  }

 private:
  template <typename Condition>
  bool WaitUntil(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Tokens> delivered_;
  std::vector<Status> errors_;
  int64_t count_ = 0, over_ = 0;
};

class RecoveryTest : public ::testing::Test {
 protected:
  static ControllerHostOptions Options(uint64_t term) {
    ControllerHostOptions options;
    ControllerOptions& c = options.controller;
    c.term = Term(term);
    c.model = "hashes";
    c.num_layers = kModel.num_layers;
    c.shape.stages = 2;
    c.scheduler.block_size = 4;
    c.scheduler.max_num_seqs = 8;
    c.scheduler.max_num_batched_tokens = 32;
    c.scheduler.max_model_len = 400;
    c.scheduler.eos_token_ids = {kEos};
    options.seed = 3;
    return options;
  }

  void StartRun(const std::string& folder) {
    auto journal = RequestJournal::Open({.folder = folder, .retain_finished = kNever}, clock_);
    ASSERT_TRUE(journal.ok()) << journal.status().ToString();
    journal_ = std::move(*journal);
    ControllerHostOptions options = Options(++runs_);
    options.first_request = journal_->first_request();
    options.journal = journal_->Hooks();
    StartController(std::move(options));
  }
  void StartController(ControllerHostOptions options) {
    auto cluster = LocalCluster::Start(std::move(options), clock_);
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = std::move(*cluster);
    if (journal_) recovery_ = NewControllerRecovery(cluster_->host(), *journal_);
    for (const char* name : {"a", "b"}) AddWorker(name);
  }
  void EndRun() {
    recovery_.reset();
    cluster_.reset();
    journal_.reset();
  }
  void AddWorker(const std::string& name) {
    Join join;
    join.name = name;
    cluster_->AddWorker(std::move(join),
                        [](const LoadShard& load, const auto&, const ShardProgressFn&) {
                          LoadedShard loaded;
                          loaded.stage = std::make_shared<stage::HashStage>(kModel, load.layers);
                          loaded.facts.weight_bytes = load.layers.size();
                          loaded.facts.kv_bytes_per_token_layer = 1;
                          loaded.facts.kv_bytes = int64_t{400} * 4 * load.layers.size();
                          return loaded;
                        });
  }

  void Ask(int count, int max_tokens) {
    for (int i = 0; i < count; ++i) {
      GenerationRequest request;
      for (int64_t t = rng_.Between(3, 12); t > 0; --t) {
        request.prompt.push_back(static_cast<TokenId>(rng_.Between(0, 199)));
      }
      request.params.max_tokens = max_tokens;
      request.params.n = i % 4 == 3 ? 2 : 1;
      if (i % 2 == 0) request.params.seed = 1000 + i;
      request.params.ignore_eos = i % 3 == 0;
      request.front_end = "stream " + std::to_string(i);
      const auto id = cluster_->host().Submit(request, clients_.Sink());
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      EXPECT_TRUE(asked_.emplace(*id, request).second) << "an id was given twice";
    }
  }

  // Copies what a crash would leave now: the appended records, the last one perhaps cut short.
  void CopyJournal(const std::string& from, const std::string& to) {
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
    std::filesystem::remove(to + "/lock");
  }

  SteadyClock clock_;
  Rng rng_{77};
  Clients clients_;
  std::map<RequestId, GenerationRequest> asked_;
  uint64_t runs_ = 0;
  std::unique_ptr<RequestJournal> journal_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<RecoveredRequests> recovery_;
};

TEST_F(RecoveryTest, RequestsContinueOverSeveralRuns) {
  const TempFolder base;
  const auto folder = [&](int run) { return base.path() + "/" + std::to_string(run); };
  StartRun(folder(0));
  std::map<RequestId, SamplingParams> params;  // with the seeds that were drawn
  for (int run = 1; run <= 3 * TestScale(); ++run) {
    Ask(8, 120);
    ASSERT_TRUE(clients_.WaitForTokens(run * 40));
    const auto seen = clients_.delivered();
    CopyJournal(folder(run - 1), folder(run));
    EndRun();  // its last outputs are discarded
    clients_.Forget();

    StartRun(folder(run));
    size_t resumed = 0;
    for (RecoveredRequest& earlier : recovery_->Take()) {
      ASSERT_TRUE(asked_.contains(earlier.id));
      EXPECT_EQ(earlier.front_end, asked_.at(earlier.id).front_end);
      EXPECT_EQ(earlier.prompt, asked_.at(earlier.id).prompt);
      params[earlier.id] = earlier.params;
      for (RequestOutput& output : earlier.delivered) clients_.Take(output);
      const auto delivered = clients_.delivered();
      const auto before = seen.find(earlier.id);
      for (size_t i = 0; before != seen.end() && i < before->second.size(); ++i) {
        const std::vector<TokenId>& known = before->second[i];
        const std::vector<TokenId>& kept = delivered.at(earlier.id)[i];
        ASSERT_GE(kept.size(), known.size())
            << "a client received tokens that are not in the journal";
        EXPECT_TRUE(std::equal(known.begin(), known.end(), kept.begin()));
      }
      if (earlier.finished) continue;
      ++resumed;
      ASSERT_TRUE(recovery_->Resume(earlier.id, clients_.Sink()).ok());
    }
    EXPECT_GT(resumed, 0u);
    EXPECT_TRUE(recovery_->Take().empty());
    if (run < 3 * TestScale()) continue;
    ASSERT_TRUE(clients_.WaitForEnds(static_cast<int64_t>(resumed)));
  }
  // Requests of the last run and those that it resumed have the tokens of the reference.
  size_t checked = 0;
  for (const auto& [id, delivered] : clients_.delivered()) {
    const GenerationRequest& request = asked_.at(id);
    for (int i = 0; i < request.params.n; ++i) {
      const std::vector<TokenId> eos =
          request.params.ignore_eos ? std::vector<TokenId>() : std::vector<TokenId>{kEos};
      EXPECT_EQ(delivered.at(static_cast<size_t>(i)),
                stage::HashReference(kModel, request.prompt, request.params,
                                     SequenceSeed(*params.at(id).seed, i),
                                     *request.params.max_tokens, eos))
          << "request " << id.value() << "." << i;
      ++checked;
    }
  }
  EXPECT_GT(checked, 8u);
  EXPECT_TRUE(clients_.errors().empty());
  EndRun();
  // All requests have ended, and the journal records it.
  const auto replay = ReplayJournal(folder(3 * TestScale()));
  ASSERT_TRUE(replay.ok());
  EXPECT_EQ(replay->damage, "");
  for (const auto& [id, request] : replay->state.requests()) EXPECT_TRUE(request.finished());
}

TEST_F(RecoveryTest, TheJournalRecordsTheEndOfDroppedRequests) {
  const TempFolder base;
  StartRun(base.path() + "/0");
  Ask(3, 300);
  ASSERT_TRUE(clients_.WaitForTokens(5));
  CopyJournal(base.path() + "/0", base.path() + "/1");
  EndRun();
  StartRun(base.path() + "/1");
  const auto earlier = recovery_->Take();
  ASSERT_EQ(earlier.size(), 3u);
  for (const RecoveredRequest& request : earlier) recovery_->Drop(request.id);
  EXPECT_EQ(recovery_->Resume(earlier[0].id, clients_.Sink()).code(), StatusCode::kNotFound);
  EndRun();
  const auto replay = ReplayJournal(base.path() + "/1");
  for (const auto& [id, request] : replay->state.requests()) EXPECT_TRUE(request.finished());
}

RequestOutput OutputOf(uint64_t request, std::initializer_list<TokenId> tokens,
                       std::optional<FinishReason> finish = {}) {
  RequestOutput output;
  output.request = RequestId(request);
  output.tokens = tokens;
  output.finish = finish;
  return output;
}

Status Accept(const ControllerJournal& hooks, uint64_t id, const GenerationRequest& asked = {}) {
  sched::NewRequest request;
  request.id = RequestId(id);
  request.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2, 3});
  request.params = std::make_shared<const SamplingParams>();
  return hooks.accepted(request, asked);
}

TEST_F(RecoveryTest, LogprobsAndTheOrderWithinAStreamAreRecovered) {
  const TempFolder folder;
  const JournalOptions options{.folder = folder.path(), .retain_finished = kNever};
  auto journal = RequestJournal::Open(options, clock_);
  ASSERT_TRUE(journal.ok());
  const ControllerJournal hooks = (*journal)->Hooks();
  GenerationRequest stream, part, without_front_end;
  stream.front_end = part.front_end = "stream";
  part.joins = RequestId(1);
  ASSERT_TRUE(Accept(hooks, 1, stream).ok());
  ASSERT_TRUE(Accept(hooks, 2, part).ok());
  ASSERT_TRUE(Accept(hooks, 3, without_front_end).ok());
  const auto with = [](RequestOutput output, float logprob) {
    for (const TokenId token : output.tokens) output.logprobs.push_back({{token, logprob, 1}, {}});
    return output;
  };
  RequestOutput first = with(OutputOf(2, {5, 6}), -1);
  first.prompt_logprobs.push_back({{2, -7, 3}, {{9, -0.5f, 1}}});
  ASSERT_TRUE(
      hooks.delivered({first, with(OutputOf(1, {7}), -2), with(OutputOf(3, {8}), -3)}).ok());
  ASSERT_TRUE(hooks.delivered({with(OutputOf(2, {9}, FinishReason::kLength), -4)}).ok());
  journal->reset();
  journal = RequestJournal::Open(options, clock_);
  ASSERT_TRUE(journal.ok());
  const auto earlier = (*journal)->TakeRecovered();
  ASSERT_EQ(earlier.size(), 3u);
  EXPECT_EQ(earlier[0].joins, std::nullopt);
  EXPECT_EQ(earlier[1].joins, RequestId(1));
  EXPECT_EQ(earlier[0].delivered_order, std::vector<uint64_t>{1});
  EXPECT_EQ(earlier[1].delivered_order, (std::vector<uint64_t>{0, 2}));
  ASSERT_EQ(earlier[1].delivered.size(), 2u);
  const RequestOutput& begin = earlier[1].delivered[0];
  ASSERT_EQ(begin.logprobs.size(), 2u);
  EXPECT_EQ(begin.logprobs[1].chosen.token, 6);
  EXPECT_EQ(begin.logprobs[1].chosen.logprob, -1);
  ASSERT_EQ(begin.prompt_logprobs.size(), 1u);
  EXPECT_EQ(begin.prompt_logprobs[0].top.at(0).token, 9);
  EXPECT_EQ(earlier[1].delivered[1].logprobs.at(0).chosen.logprob, -4);
  EXPECT_TRUE(earlier[1].delivered[1].prompt_logprobs.empty());
  EXPECT_TRUE(earlier[2].delivered[0].logprobs.empty()) << "no front end needs them";
}

// A request belongs to the workers that computed its newest token.
TEST_F(RecoveryTest, TheFingerprintsOfTokensAreRecovered) {
  const TempFolder folder;
  const JournalOptions options{.folder = folder.path(), .retain_finished = kNever};
  auto journal = RequestJournal::Open(options, clock_);
  ASSERT_TRUE(journal.ok());
  const ControllerJournal hooks = (*journal)->Hooks();
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(Accept(hooks, id).ok());
  const auto from = [](RequestOutput output, const char* fingerprint) {
    output.fingerprint = fingerprint;
    return output;
  };
  ASSERT_TRUE(hooks
                  .delivered({from(OutputOf(1, {5}), "fp_a"), OutputOf(1, {6}),
                              from(OutputOf(1, {7}), "fp_b"), OutputOf(1, {8})})
                  .ok());
  for (int run = 0; run < 2; ++run) {  // also from the snapshot of the run before
    journal->reset();
    journal = RequestJournal::Open(options, clock_);
    ASSERT_TRUE(journal.ok());
    const auto earlier = (*journal)->TakeRecovered();
    ASSERT_EQ(earlier.size(), 2u);
    ASSERT_EQ(earlier[0].delivered.size(), 2u);
    EXPECT_EQ(earlier[0].delivered[0].tokens.size(), 2u);
    EXPECT_EQ(earlier[0].delivered[0].fingerprint, "fp_a");
    EXPECT_EQ(earlier[0].delivered[1].fingerprint, "fp_b");
    EXPECT_EQ((*journal)->TakeResumable(RequestId(1))->computed_by, "fp_b");
    EXPECT_EQ((*journal)->TakeResumable(RequestId(2))->computed_by, "");
  }
}

TEST_F(RecoveryTest, OneDeliveryIsOneWrite) {
  const TempFolder folder;
  auto journal = RequestJournal::Open({.folder = folder.path(), .retain_finished = kNever}, clock_);
  ASSERT_TRUE(journal.ok());
  const ControllerJournal hooks = (*journal)->Hooks();
  for (uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(Accept(hooks, id).ok());
  const uint64_t before = (*journal)->stats().writes;
  std::vector<RequestOutput> output;
  for (uint64_t id = 1; id <= 20; ++id) output.push_back(OutputOf(id, {5, 6}));
  output.push_back(OutputOf(3, {}, FinishReason::kAbort));
  output.push_back(OutputOf(4, {8}, FinishReason::kStop));
  ASSERT_TRUE(hooks.delivered(output).ok());
  EXPECT_EQ((*journal)->stats().writes, before + 1);
  ASSERT_TRUE(hooks.delivered({OutputOf(3, {9})}).ok()) << "outputs after the end are not recorded";
  EXPECT_EQ((*journal)->stats().writes, before + 1);
  journal->reset();
  const auto replay = ReplayJournal(folder.path());
  EXPECT_EQ(replay->state.requests().at(RequestId(4)).continuations[0].tokens,
            (std::vector<TokenId>{5, 6, 8}));
  EXPECT_EQ(replay->state.requests().at(RequestId(4)).continuations[0].finish_reason, "stop");
  EXPECT_EQ(replay->state.requests().at(RequestId(3)).continuations[0].finish_reason, "abort");
}

// On a full disk running requests fail and new ones are refused. Once there is space again, the
// journal works as before and also records the end of the requests that failed.
TEST_F(RecoveryTest, AFullDiskFailsRequestsAndNothingElse) {
  const TempFolder folder;
  auto journal = RequestJournal::Open({.folder = folder.path(), .retain_finished = kNever}, clock_);
  ASSERT_TRUE(journal.ok());
  const ControllerJournal hooks = (*journal)->Hooks();
  ASSERT_TRUE(Accept(hooks, 1).ok());
  ASSERT_TRUE(Accept(hooks, 2).ok());
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 600;
  ::setrlimit(RLIMIT_FSIZE, &small);
  Status delivered;
  for (int i = 0; i < 100 && delivered.ok(); ++i) delivered = hooks.delivered({OutputOf(1, {7})});
  small.rlim_cur = 50;  // too small for a snapshot too
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Status refused = Accept(hooks, 3);
  const Status again = hooks.delivered({OutputOf(1, {7})});
  const Status other = hooks.delivered({OutputOf(2, {7})});
  const Status checked = hooks.check();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(delivered.code(), StatusCode::kUnavailable);
  EXPECT_NE(delivered.message().find("journal cannot be written"), std::string::npos)
      << delivered.ToString();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(again.ok()) << "the request has ended";
  EXPECT_EQ(other.code(), StatusCode::kUnavailable);
  EXPECT_EQ(checked.code(), StatusCode::kUnavailable);
  for (const Status& told : {delivered, refused, other, checked}) {
    EXPECT_EQ(told.message().find(folder.path()), std::string::npos) << "clients see it";
  }
  EXPECT_TRUE(hooks.check().ok());
  ASSERT_TRUE(Accept(hooks, 4).ok());
  ASSERT_TRUE(hooks.delivered({OutputOf(4, {7})}).ok());
  journal->reset();
  const auto replay = ReplayJournal(folder.path());
  EXPECT_EQ(replay->damage, "");
  for (const auto& [id, request] : replay->state.requests()) {
    EXPECT_EQ(request.finished(), id != RequestId(4)) << id.value();
  }
}

// Nobody sends requests to a server that is not ready, so it must find out without them.
TEST_F(RecoveryTest, AServerIsNotReadyWhileItsJournalCannotBeWritten) {
  ControllerHostOptions options = Options(1);
  std::atomic<bool> works = true;
  options.journal.accepted = [](const auto&, const auto&) { return OkStatus(); };
  options.journal.delivered = [](const auto&) { return OkStatus(); };
  options.journal.check = [&works] { return works ? OkStatus() : Unavailable("no room"); };
  StartController(std::move(options));
  const auto becomes = [this](const std::optional<std::string>& state) {
    const Time end = clock_.Now() + Duration::Seconds(20);
    while (cluster_->host().NotReady() != state && clock_.Now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(cluster_->host().NotReady(), state);
  };
  becomes(std::nullopt);
  works = false;
  becomes("no room");
  works = true;
  becomes(std::nullopt);
  EndRun();
}

// A segment that somebody removed is written anew.
TEST_F(RecoveryTest, ACheckWritesAJournalThatIsGone) {
  const TempFolder folder;
  auto journal = RequestJournal::Open({.folder = folder.path(), .retain_finished = kNever}, clock_);
  ASSERT_TRUE(journal.ok());
  const ControllerJournal hooks = (*journal)->Hooks();
  ASSERT_TRUE(Accept(hooks, 1).ok());
  EXPECT_TRUE(hooks.check().ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::remove(entry.path());
  }
  EXPECT_TRUE(hooks.check().ok());
  EXPECT_EQ(ReplayJournal(folder.path())->state.requests().count(RequestId(1)), 1u);
  std::filesystem::remove_all(folder.path());
  EXPECT_EQ(hooks.check().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(Accept(hooks, 2).ok());
}

TEST_F(RecoveryTest, ARequestThatCannotBeRecordedFailsAlone) {
  ControllerHostOptions options = Options(1);
  std::atomic<int> refuse_accepts = 0;
  std::atomic<bool> refuse_outputs = false;
  std::mutex mutex;
  std::map<RequestId, size_t> on_record;
  options.journal.accepted = [&](const auto&, const auto&) {
    return refuse_accepts-- > 0 ? Unavailable("the disk is full") : OkStatus();
  };
  options.journal.delivered = [&](const std::vector<RequestOutput>& outputs) {
    if (refuse_outputs.exchange(false)) return Unavailable("the disk is full");
    std::lock_guard lock(mutex);
    for (const RequestOutput& output : outputs) on_record[output.request] += output.tokens.size();
    return OkStatus();
  };
  StartController(std::move(options));
  refuse_accepts = 1;
  GenerationRequest request{.prompt = {1, 2, 3}};
  request.params.max_tokens = 5;
  const auto refused = cluster_->host().Submit(request, clients_.Sink());
  EXPECT_EQ(refused.status().message(), "the disk is full");
  Ask(3, 200);
  ASSERT_TRUE(clients_.WaitForTokens(20));
  refuse_outputs = true;
  ASSERT_TRUE(clients_.WaitForEnds(1));
  Ask(2, 30);  // the controller continues
  ASSERT_TRUE(clients_.WaitForEnds(5));
  const auto errors = clients_.errors();
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors[0].message(), "the disk is full");
  std::lock_guard lock(mutex);
  for (const auto& [id, delivered] : clients_.delivered()) {
    size_t tokens = 0;
    for (const auto& continuation : delivered) tokens += continuation.size();
    EXPECT_LE(tokens, on_record[id]) << "delivered but not recorded";
  }
  EndRun();
}

}  // namespace
}  // namespace millrace::cluster::testing
