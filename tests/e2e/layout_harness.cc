#include "layout_harness.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "base/rng.h"
#include "base/testing/source_path.h"
#include "cluster/worker/worker_model.h"
#include "model/describe.h"
#include "stage/run_alone.h"
#include "tensor/cpu/cpu_device.h"
#include "text/grammars.h"
#include "text/token_table.h"

namespace millrace {
namespace {

#ifdef MILLRACE_SANITIZED
constexpr int kManyRequests = 24;
#else
constexpr int kManyRequests = 200;
#endif
constexpr int kMaxModelLen = 256;
const std::string kModel = SourcePath("models/demo");

const model::ModelDescription& Description() {
  static const auto description = std::move(model::DescribeModel(kModel)).value();
  return description;
}

std::vector<TokenId> RandomTokens(Rng& rng, int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& t : tokens)
    t = static_cast<TokenId>(rng.Between(0, Description().spec.vocab_size - 1));
  return tokens;
}

const TokenTable& DemoTokens() {
  static const TokenTable table =
      text::TokenTableOf(*text::Tokenizer::Load(kModel).value(), Description().generation.eos)
          .value();
  return table;
}

const std::string& AnySchema() {
  static const std::string schema =
      GrammarOf(GrammarKind::kJsonSchema,
                R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
          "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1}},
          "required": ["name", "sizes"], "additionalProperties": false})");
  return schema;
}

SamplingParams ParamsOf(int i, Rng& rng) {
  SamplingParams params;
  params.max_tokens = static_cast<int>(rng.Between(8, 24));
  params.ignore_eos = i % 4 < 2;
  params.temperature = i % 2 == 0 ? 0.0 : 0.9;
  params.seed = static_cast<uint64_t>(1000 + i);
  if (i % 10 == 1) params.n = 2;
  if (i % 20 == 4) params.n = 2;
  if (i % 10 == 3) params.top_p = 0.9;
  if (i % 10 == 5) params.frequency_penalty = 0.5;
  if (i % 10 == 6) params.repetition_penalty = 1.2;
  if (i % 10 == 7) params.top_k = 20;
  if (i % 5 == 2) params.logprobs = 3;
  if (i % 40 == 9) params.prompt_logprobs = 2;
  if (i % 8 == 3) params.grammar = AnySchema();
  if (i % 16 == 10) params.grammar = GrammarOf(GrammarKind::kRegex, "[0-9a-f]{2}(:[0-9a-f]{2})*");
  if (i % 10 == 8) params.stop_token_ids = {static_cast<TokenId>(rng.Between(4, 400))};
  if (i % 10 == 9 && i % 40 != 9) {
    params = {.n = 3, .max_tokens = params.max_tokens, .temperature = 0, .seed = params.seed};
    params.logprobs = 1;
    params.beam_search = true;
    params.length_penalty = i % 20 == 9 ? 1 : 0;
  }
  if (i % 16 == 14) params.bad_words = {{params.stop_token_ids.empty() ? 260 : 270}, {265, 266}};
  if (i % 20 == 0 || i % 50 == 33) {  // 33: long prompts
    params.grammar.clear();
    params.pooling = i % 40 == 0 ? Pooling::kLast : Pooling::kMean;
  }
  return params;
}

sched::SchedulerOptions SchedulerOf() {
  sched::SchedulerOptions options;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 160;  // the longest prompts come in chunks
  options.max_model_len = kMaxModelLen;
  options.eos_token_ids = Description().generation.eos;
  return options;
}

void Append(std::string& text, const PositionLogprobs& at) {
  const auto one = [&](const TokenLogprob& t) {
    text += fmt::format(" {}:{:08x}:{}", t.token, std::bit_cast<uint32_t>(t.logprob), t.rank);
  };
  one(at.chosen);
  for (const TokenLogprob& t : at.top) one(t);
  text += ';';
}

}  // namespace

const TestRequests& ManyRequests() {
  static const TestRequests test_requests = [] {
    Rng rng(2027);
    const std::vector<TokenId> shared = RandomTokens(rng, 64);
    TestRequests made(kManyRequests);
    for (int i = 0; i < kManyRequests; ++i) {
      cluster::GenerationRequest& request = made[static_cast<size_t>(i)];
      if (i % 3 == 0) request.prompt.assign(shared.begin(), shared.begin() + rng.Between(1, 64));
      const int64_t own = i % 25 == 8 ? rng.Between(120, 160) : rng.Between(1, 50);
      std::ranges::copy(RandomTokens(rng, own), std::back_inserter(request.prompt));
      request.params = ParamsOf(i, rng);
    }
    return made;
  }();
  return test_requests;
}

const TestRequests& FewStreams() {
  static const TestRequests test_requests = [] {
    Rng rng(7);
    TestRequests made(3);
    for (cluster::GenerationRequest& request : made) {
      request.prompt = RandomTokens(rng, rng.Between(18, 40));
      request.params.max_tokens = kStreamTokens;
      request.params.ignore_eos = true;
      request.params.seed = static_cast<uint64_t>(rng.Between(1, 1'000'000));
      request.params.temperature = 0.9;
      request.params.logprobs = 1;
    }
    made[0].params.temperature = 0;
    // No token ends it before the last.
    made[1].params.ignore_eos = false;
    made[1].params.grammar = GrammarOf(GrammarKind::kRegex, "[a-z ,.]{1000}");
    made[2].params.n = 2;
    return made;
  }();
  return test_requests;
}

std::string TextOf(const cluster::StreamAnswers::One& answer) {
  std::string text = answer.over ? "" : "not over ";
  if (!answer.error.ok()) text += answer.error.ToString();
  for (const cluster::SequenceAnswer& sequence : answer.sequences) {
    text += '[';
    for (TokenId token : sequence.tokens) text += fmt::format("{} ", token);
    text += sequence.finish ? FinishReasonName(*sequence.finish) : "open";
    if (sequence.stop_token) text += fmt::format(" by {}", *sequence.stop_token);
    if (!sequence.logprobs.empty()) text += " logprobs";
    for (const PositionLogprobs& at : sequence.logprobs) Append(text, at);
    if (!sequence.prompt_logprobs.empty()) text += " of the prompt";
    for (const PositionLogprobs& at : sequence.prompt_logprobs) Append(text, at);
    if (!sequence.pooled.empty()) text += " vector";
    for (const float number : sequence.pooled) {
      text += fmt::format(" {:08x}", std::bit_cast<uint32_t>(number));
    }
    text += ']';
  }
  return text;
}

std::vector<std::string> AnswersAlone(const TestRequests& test_requests) {
  auto device = std::move(tensor::NewCpuDevice({.threads = 1})).value();
  auto model = std::move(model::Model::Load(kModel, *device, {.max_batched_tokens = 160})).value();
  sched::SchedulerOptions options = SchedulerOf();
  options.prefix_caching = false;
  options.num_blocks = 256;
  auto runner =
      std::move(stage::StageRunner::Create(std::move(device), std::move(model),
                                           {.num_blocks = options.num_blocks,
                                            .eos_token_ids = options.eos_token_ids,
                                            .grammars = text::Grammars::Of(DemoTokens())}))
          .value();
  auto scheduler = std::move(sched::Scheduler::Create(options)).value();
  cluster::StreamAnswers answers;
  for (size_t i = 0; i < test_requests.size(); ++i) {
    const cluster::GenerationRequest& asked = test_requests[i];
    const Status added =
        scheduler->Add({.id = RequestId(i + 1),
                        .prompt = std::make_shared<const std::vector<TokenId>>(asked.prompt),
                        .params = std::make_shared<const SamplingParams>(asked.params),
                        .seed = asked.params.seed.value()},
                       Time{});
    EXPECT_TRUE(added.ok()) << added.ToString();
    EXPECT_TRUE(stage::RunAlone(*scheduler, *runner, answers.Sink(i, asked.params.n)));
  }
  std::vector<std::string> texts;
  for (const auto& one : answers.ones()) texts.push_back(TextOf(one));
  return texts;
}

Plan PlanOf(const std::vector<StageSpec>& stages, std::vector<PlanEdge> edges) {
  Plan plan;
  plan.num_layers = kLayers;
  plan.tokens_per_s = plan.tokens_per_s_bound = 1;
  for (const StageSpec& spec : stages) {
    plan.stages.push_back(
        {.tensor_parallel = spec.tensor_parallel, .layers = spec.layers, .role = spec.role});
  }
  if (edges.empty()) {
    const int last = static_cast<int>(stages.size()) - 1;
    edges.push_back({std::nullopt, 0, 1});
    for (int i = 0; i < last; ++i) edges.push_back({i, i + 1, 1});
    edges.push_back({last, std::nullopt, 1});
  }
  plan.edges = std::move(edges);
  return plan;
}

sched::SchedulerOptions LayoutTest::DefaultScheduler() { return SchedulerOf(); }

void LayoutTest::Squeeze(int num_blocks) {
  scheduler_.num_blocks = scheduler_.num_host_blocks = num_blocks;
  scheduler_.preemption = sched::PreemptionMode::kSwap;
}

void LayoutTest::Start(std::optional<Plan> plan, int automatic_stages) {
  static const Status log = InitLog("error");  // once: threads of the cluster before may still log
  ASSERT_TRUE(log.ok());
  cluster::ControllerHostOptions options;
  cluster::ControllerOptions& c = options.controller;
  c.short_prompt_tokens = 0;  // also short prompts are handed over
  c.term = Term(1);
  c.model = "demo";
  c.num_layers = kLayers;
  c.scheduler = scheduler_;
  c.token_table = DemoTokens();
  c.plan = std::move(plan);
  c.shape.stages = automatic_stages;
  c.silent_limit = c.stuck_limit = Duration::Seconds(20);  // cores are shared: slow is not dead
  c.replace_limit = Duration::Seconds(0.1);
  c.secret = 99;
  auto started = cluster::LocalCluster::Start(std::move(options), clock_);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  cluster_ = std::move(*started);
}

std::string LayoutTest::AddWorker() {
  static const WorkerIdentity identity =
      cluster::OpenWorkerModel(kModel, cluster::WeightsFrom::kDisk, model::DigestCache(""), clock_)
          .value()
          .identity;
  Join join;
  join.name = fmt::format("w{}", workers_added_++);
  join.identity = identity;
  const std::string name = join.name;
  cluster_->AddWorker(std::move(join), cluster::MakeShardLoader({.folder = kModel,
                                                                 .threads = 1,
                                                                 .kv_bytes = int64_t{24} << 20,
                                                                 .max_model_len = kMaxModelLen}));
  return name;
}

void LayoutTest::StartWithWorkers(const Plan& plan) {
  Start(plan);
  for (const StagePlan& stage : plan.stages) {
    for (int rank = 0; rank < stage.tensor_parallel; ++rank) AddWorker();
  }
  const size_t pipelines = cluster::MakeLayout(plan, {}).value().pipelines.size();
  ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
    return !status.missing && !status.degraded && status.pipelines.size() == pipelines &&
           std::ranges::all_of(status.pipelines, &cluster::PipelineStatus::open);
  }));
}

void LayoutTest::Ask(const TestRequests& test_requests, OnDelivered on_delivered) {
  answers_ = std::make_shared<cluster::StreamAnswers>();
  ids_.clear();
  for (size_t i = 0; i < test_requests.size(); ++i) {
    std::vector<size_t> delivered(static_cast<size_t>(test_requests[i].params.n));
    const auto id = cluster_->host().Submit(
        test_requests[i],
        [i, delivered, on_delivered, answers = answers_,
         take = answers_->Sink(i, test_requests[i].params.n)](RequestOutput&& output) mutable {
          size_t& tokens = delivered[static_cast<size_t>(output.index)];
          tokens += output.tokens.size();
          if (on_delivered && !output.tokens.empty()) on_delivered(i, output.index, tokens);
          take(std::move(output));
        });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    ids_.push_back(*id);
  }
}

bool LayoutTest::WaitFor(const std::function<bool(const cluster::ClusterStatus&)>& wanted) {
  const Time give_up = clock_.Now() + Duration::Seconds(30);
  while (!wanted(Describe())) {
    if (clock_.Now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void LayoutTest::ExpectAnswers(const std::vector<std::string>& expected) {
  ASSERT_TRUE(answers_->WaitForAll());
  const auto ones = answers_->ones();
  ASSERT_EQ(ones.size(), expected.size());
  for (size_t i = 0; i < ones.size(); ++i) {
    EXPECT_EQ(TextOf(ones[i]), expected[i]) << "request " << i;
  }
  ExpectNothingLeft();
}

void LayoutTest::ExpectManyAnswers() {
  static const std::vector<std::string> expected = AnswersAlone(ManyRequests());
  ExpectAnswers(expected);
}

// Workers have the pipelines that the controller says are open, and no others.
bool LayoutTest::PipelinesAgree(const cluster::ClusterStatus& status) {
  return std::ranges::all_of(status.workers, [&](const cluster::WorkerStatus& worker) {
    if (worker.rank != 0) return true;  // a pipeline's status names the first of each hop
    const auto through =
        std::ranges::count_if(status.pipelines, [&](const cluster::PipelineStatus& pipeline) {
          return pipeline.open &&
                 std::ranges::find(pipeline.workers, worker.name) != pipeline.workers.end();
        });
    const cluster::WorkerHost* host = cluster_->worker(worker.name);
    return host != nullptr && host->pipelines() == static_cast<size_t>(through);
  });
}

// Steps in flight and messages under way may still be exported something for a moment.
void LayoutTest::ExpectNothingLeft() {
  cluster::ClusterStatus status;
  sched::SchedulerStats stats;
  const bool clean = WaitFor([&](const cluster::ClusterStatus& now) {
    status = now;
    stats = cluster_->host().Stats().scheduler;
    return now.requests == 0 && now.waiting == 0 && now.moving == 0 &&
           std::ranges::all_of(now.pipelines, [](const auto& l) { return l.blocks_used == 0; }) &&
           stats.blocks_free == stats.blocks_total && stats.blocks_pinned == 0 &&
           stats.blocks_pending == 0 && cluster_->exported_kv() == 0 && PipelinesAgree(now);
  });
  EXPECT_TRUE(clean) << status.requests << " requests, " << status.waiting << " waiting, "
                     << status.moving << " moving; " << stats.blocks_free << " of "
                     << stats.blocks_total << " blocks free, " << stats.blocks_pinned << " pinned, "
                     << stats.blocks_pending << " pending; " << cluster_->exported_kv()
                     << " exposed; pipelines " << (PipelinesAgree(status) ? "agree" : "differ");
  EXPECT_EQ(status.counters.failed_by_losses, 0u);
  EXPECT_EQ(status.counters.expired, 0u);
}

}  // namespace millrace
