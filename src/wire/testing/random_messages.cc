#include "wire/testing/random_messages.h"

#include <algorithm>
#include <limits>

namespace millrace::wire::testing {
namespace {

// Small numbers, large numbers and the limits.
int64_t AnyUpTo(Rng& rng, int64_t max) {
  switch (rng.Between(0, 3)) {
    case 0: return max;
    case 1: return static_cast<int64_t>(rng.Next() % (static_cast<uint64_t>(max) + 1));
    default: return rng.Between(0, std::min<int64_t>(max, 200));
  }
}
int AnyInt(Rng& rng) { return static_cast<int>(AnyUpTo(rng, std::numeric_limits<int>::max())); }
ProtocolRange AnyProtocol(Rng& rng) {
  const int newest = AnyInt(rng);
  return {static_cast<int>(AnyUpTo(rng, newest)), newest};
}
int64_t AnyBytes(Rng& rng) { return AnyUpTo(rng, std::numeric_limits<int64_t>::max()); }
bool Coin(Rng& rng) { return rng.Between(0, 1) == 1; }

template <typename Id>
Id AnyId(Rng& rng) {
  return Id(Coin(rng) ? rng.Next() : static_cast<uint64_t>(rng.Between(0, 100)));
}

std::string AnyText(Rng& rng, size_t max = kNameBytesMax) {
  std::string text(static_cast<size_t>(AnyUpTo(rng, static_cast<int64_t>(max))), ' ');
  for (char& c : text) {
    do {
      c = static_cast<char>(rng.Between(-128, 127));
    } while ((c >= 0 && c < 0x20) || c == 0x7f);
  }
  return text;
}

Duration AnyDuration(Rng& rng) { return {AnyUpTo(rng, kDurationMax.ns)}; }

Status AnyStatus(Rng& rng) {
  const auto code =
      static_cast<StatusCode>(rng.Between(0, static_cast<int>(StatusCode::kInternal)));
  return code == StatusCode::kOk ? OkStatus() : Status(code, AnyText(rng, kStatusBytesMax));
}

template <typename Make>
auto AnyVector(Rng& rng, int64_t max, Make make) {
  std::vector<decltype(make())> result;
  const int64_t size = rng.Between(0, max);
  for (int64_t i = 0; i < size; ++i) result.push_back(make());
  return result;
}
std::vector<int32_t> AnyIndices(Rng& rng, int64_t max) {
  return AnyVector(rng, max, [&] { return AnyInt(rng); });
}

LayerRange AnyLayers(Rng& rng) {
  const auto begin = static_cast<int>(AnyUpTo(rng, kLayersMax - 1));
  return {begin, static_cast<int>(rng.Between(begin + 1, kLayersMax))};
}

TensorRank AnyRank(Rng& rng) {
  const int size = 1 << rng.Between(0, 3);
  return {static_cast<int>(rng.Between(0, size - 1)), size};
}

std::string AnyHost(Rng& rng) {
  if (rng.Between(0, 7) == 0) return {};
  return "10.0.0." + std::to_string(rng.Between(0, 255)) + ":" +
         std::to_string(rng.Between(1, 65535));
}

WorkerAddress AnyAddress(Rng& rng) {
  return {AnyId<WorkerId>(rng), AnyId<Incarnation>(rng), AnyHost(rng), AnyHost(rng), AnyText(rng),
          AnyBytes(rng)};
}
std::vector<WorkerAddress> AnyAddresses(Rng& rng, int count) {
  std::vector<WorkerAddress> result;
  for (int i = 0; i < count; ++i) result.push_back(AnyAddress(rng));
  return result;
}

KvHandle AnyHandle(Rng& rng) {
  KvHandle handle{AnyId<PipelineId>(rng), rng.Next(), {}};
  for (uint8_t& byte : handle.nonce) byte = static_cast<uint8_t>(rng.Next());
  return handle;
}

// Gives a field any value that Validate accepts.
class AnyField {
 public:
  AnyField(Rng& rng, SamplingParams& params) : rng_(rng), params_(params) {}

  template <typename T>
  void operator()(const SamplingField&, T& value) {
    do {
      Draw(value);
    } while (!Validate(params_, std::numeric_limits<int>::max()).ok());
  }

 private:
  TokenId AnyToken() { return std::min(AnyInt(rng_), std::numeric_limits<int>::max() - 1); }

  void Draw(bool& value) { value = Coin(rng_); }
  void Draw(uint64_t& value) { value = rng_.Next(); }
  void Draw(Pooling& value) { value = static_cast<Pooling>(rng_.Between(0, 2)); }
  // Ranges differ: most of them are within one of these.
  void Draw(int& value) {
    value = Coin(rng_) ? AnyInt(rng_) : static_cast<int>(rng_.Between(0, kTopLogprobsMax));
  }
  void Draw(double& value) {
    value = Coin(rng_) ? rng_.Uniform() * 100 : (1.0 - rng_.Uniform()) * 4 - 2;
  }
  void Draw(std::string& value) {
    value.clear();
    if (Coin(rng_)) value = GrammarOf(GrammarKind::kLark, "a\n" + AnyText(rng_));
  }
  template <typename T>
  void Draw(std::optional<T>& value) {
    value.reset();
    if (Coin(rng_)) Draw(value.emplace());
  }
  void Draw(std::vector<std::pair<TokenId, float>>& value) {
    value = AnyVector(rng_, 4, [this] {
      return std::pair<TokenId, float>(AnyToken(), static_cast<float>(rng_.Uniform() * 200 - 100));
    });
  }
  void Draw(std::vector<TokenId>& value) {
    value = AnyVector(rng_, 4, [this] { return AnyToken(); });
  }
  void Draw(std::vector<std::vector<TokenId>>& value) {
    value =
        AnyVector(rng_, 3, [this] { return AnyVector(rng_, 4, [this] { return AnyToken(); }); });
  }
  void Draw(std::vector<std::string>& value) {
    value =
        AnyVector(rng_, 3, [this] { return "\n\x80" + AnyText(rng_, kStopStringBytesMax - 2); });
  }

  Rng& rng_;
  SamplingParams& params_;
};

// Beam searches and vectors go with few other parameters, so they are drawn apart.
SamplingParams AnyParams(Rng& rng) {
  SamplingParams params;
  if (rng.Between(0, 3) == 0) {
    params.beam_search = true;
    params.temperature = 0;
    params.n = static_cast<int>(rng.Between(1, kBeamWidthMax));
    params.length_penalty = rng.Uniform() * 4 - 2;
    return params;
  }
  if (rng.Between(0, 7) == 0) {
    params.pooling = Coin(rng) ? Pooling::kLast : Pooling::kMean;
    return params;
  }
  ForEachField(params, AnyField(rng, params));
  return params;
}

std::vector<SequenceStart> AnyStarted(Rng& rng) {
  const auto tokens = [&] {
    return std::make_shared<const std::vector<TokenId>>(AnyIndices(rng, 50));
  };
  std::vector<SequenceStart> started;
  for (int64_t i = rng.Between(0, 5); i > 0; --i) {
    SequenceStart s;
    const bool sibling = !started.empty() && Coin(rng);
    s.id = AnyId<SequenceId>(rng);
    s.params =
        sibling ? started.back().params : std::make_shared<const SamplingParams>(AnyParams(rng));
    s.seed = rng.Next();
    s.prompt = sibling ? started.back().prompt : tokens();
    if (Coin(rng)) s.output = tokens();
    started.push_back(std::move(s));
  }
  return started;
}

StepPlan AnyPlan(Rng& rng) {
  StepPlan plan;
  plan.id = AnyId<StepId>(rng);
  plan.started = AnyStarted(rng);
  plan.released = AnyVector(rng, 10, [&] { return AnyId<SequenceId>(rng); });
  plan.tokens = AnyIndices(rng, 100);
  plan.tokens.push_back(AnyInt(rng));
  plan.blocks = AnyIndices(rng, 100);
  const auto tokens = static_cast<int64_t>(plan.tokens.size());
  const auto blocks = static_cast<int64_t>(plan.blocks.size());
  plan.sequences = AnyVector(rng, 20, [&] {
    SequenceStep s;
    s.id = AnyId<SequenceId>(rng);
    s.first_token = static_cast<int32_t>(rng.Between(0, tokens - 1));
    s.num_tokens = static_cast<int32_t>(rng.Between(1, tokens - s.first_token));
    s.start =
        static_cast<int32_t>(AnyUpTo(rng, std::numeric_limits<int32_t>::max() - s.num_tokens));
    s.keep_blocks = static_cast<int32_t>(AnyUpTo(rng, int64_t{kBlocksPerMessageMax}));
    s.first_new_block = static_cast<int32_t>(rng.Between(0, blocks));
    s.num_new_blocks = static_cast<int32_t>(rng.Between(0, blocks - s.first_new_block));
    s.logits = static_cast<LogitsWanted>(rng.Between(0, 2));
    if (s.logits == LogitsWanted::kNone && Coin(rng)) {
      s.only_layers = AnyLayers(rng);
    }
    return s;
  });
  const auto copies = [&] {
    return AnyVector(rng, 5, [&] { return BlockCopy{AnyInt(rng), AnyInt(rng)}; });
  };
  plan.swap_out = copies();
  plan.swap_in = copies();
  plan.copies = copies();
  return plan;
}

PipelineStep AnyPipelineStep(Rng& rng) {
  return {AnyId<PipelineId>(rng), std::make_shared<const StepPlan>(AnyPlan(rng)), rng.Next()};
}

PositionLogprobs AnyPosition(Rng& rng) {
  const auto logprob = [&] {
    return TokenLogprob{AnyInt(rng), static_cast<float>(-20 * rng.Uniform()), AnyInt(rng)};
  };
  return {logprob(), AnyVector(rng, kTopLogprobsMax, logprob)};
}

StepResult AnyResult(Rng& rng) {
  StepResult result;
  result.id = AnyId<StepId>(rng);
  result.sequences = AnyVector(rng, 10, [&] {
    SequenceResult s;
    s.id = AnyId<SequenceId>(rng);
    if (Coin(rng)) s.token = AnyInt(rng);
    if (Coin(rng)) s.logprobs = AnyPosition(rng);
    s.prompt_logprobs = AnyVector(rng, 3, [&] { return AnyPosition(rng); });
    s.pooled = AnyVector(rng, 9, [&] { return static_cast<float>(rng.Uniform()); });
    if (Coin(rng)) s.error = AnyStatus(rng);
    return s;
  });
  if (Coin(rng)) result.error = AnyStatus(rng);
  return result;
}

LoadShard AnyLoad(Rng& rng) {
  LoadShard load;
  load.shard = AnyId<ShardId>(rng);
  load.group = rng.Next();
  load.layers = AnyLayers(rng);
  load.rank = AnyRank(rng);
  load.ranks = AnyAddresses(rng, load.rank.size == 1 && Coin(rng) ? 0 : load.rank.size);
  load.sources = AnyAddresses(rng, static_cast<int>(rng.Between(0, 3)));
  load.model_fingerprint = AnyText(rng);
  load.max_batched_tokens = static_cast<int>(AnyUpTo(rng, int64_t{kTokensPerStepMax}));
  load.max_model_len = static_cast<int>(AnyUpTo(rng, int64_t{std::numeric_limits<int>::max()}));
  return load;
}

OpenPipeline AnyOpenPipeline(Rng& rng) {
  OpenPipeline open;
  open.pipeline = AnyId<PipelineId>(rng);
  int layer = static_cast<int>(rng.Between(0, 100));
  for (int64_t i = rng.Between(1, 4); i > 0; --i) {
    const int end = layer + static_cast<int>(rng.Between(1, 100));
    const int size = AnyRank(rng).size;
    PipelineHop& hop = open.hops.emplace_back();
    hop.layers = {layer, end};
    hop.ranks = AnyAddresses(rng, size);
    for (int k = 0; k < size; ++k) hop.shards.push_back(AnyId<ShardId>(rng));
    layer = end;
  }
  open.hop = static_cast<int>(rng.Between(0, std::ssize(open.hops) - 1));
  open.rank = static_cast<int>(
      rng.Between(0, std::ssize(open.hops[static_cast<size_t>(open.hop)].ranks) - 1));
  open.block_size = static_cast<int>(rng.Between(1, kBlockSizeMax));
  open.num_blocks = AnyInt(rng);
  open.num_host_blocks = AnyInt(rng);
  open.max_batched_tokens = static_cast<int>(AnyUpTo(rng, int64_t{kTokensPerStepMax}));
  open.eos_token_ids = AnyIndices(rng, 4);
  const LayerRange layers = open.hops[static_cast<size_t>(open.hop)].layers;
  for (int l = layers.begin + 1; l <= layers.end; ++l) {
    if (rng.Between(0, 20) == 0) open.cache_activations_at.push_back(l);
  }
  open.shares_memory = Coin(rng);
  return open;
}

PullKv AnyPull(Rng& rng) {
  PullKv pull{AnyId<TransferId>(rng), AnyId<PipelineId>(rng), AnyIndices(rng, 50), 0, 0, {}};
  pull.end_token = AnyInt(rng);
  pull.first_token = static_cast<int>(AnyUpTo(rng, pull.end_token));
  pull.sources = AnyVector(rng, 3, [&] {
    return KvSource{AnyAddress(rng), AnyHandle(rng), AnyLayers(rng), AnyRank(rng)};
  });
  pull.background = AnyUpTo(rng, 1) == 1;
  if (Coin(rng)) pull.layers = AnyLayers(rng);
  pull.activations = static_cast<PulledActivations>(rng.Between(0, 2));
  return pull;
}

MachineFacts AnyMachine(Rng& rng) {
  MachineFacts machine{.zone = AnyText(rng), .spot = Coin(rng)};
  if (Coin(rng)) machine.cores = static_cast<int>(rng.Between(1, kCoresMax));
  if (Coin(rng)) machine.price_usd_per_hour = rng.Uniform() * kPriceUsdPerHourMax;
  return machine;
}

Join AnyJoin(Rng& rng) {
  return {.name = AnyText(rng),
          .token = AnyText(rng, 64),
          .identity = {AnyProtocol(rng), AnyText(rng), AnyText(rng), AnyText(rng)},
          .address = AnyAddress(rng),
          .device = AnyText(rng),
          .memory_bytes = AnyBytes(rng),
          .held = AnyVector(rng, 3,
                            [&] {
                              return HeldShard{AnyLayers(rng), AnyRank(rng)};
                            }),
          .machine = AnyMachine(rng),
          .token_table = AnyText(rng)};
}

std::optional<Duration> AnyTime(Rng& rng) {
  return Coin(rng) ? std::optional(AnyDuration(rng)) : std::nullopt;
}

NoticeOrigin AnyOrigin(Rng& rng) {
  return {static_cast<NoticeSource>(rng.Between(0, kNoticeSources - 1)),
          static_cast<NoticeKind>(rng.Between(0, kNoticeKinds - 1))};
}

}  // namespace

Envelope RandomEnvelope(Rng& rng) {
  return {AnyId<Term>(rng), AnyId<Incarnation>(rng), rng.Next()};
}

ToController RandomToController(Rng& rng, size_t kind) {
  switch (kind) {
    case 0: return AnyJoin(rng);
    case 1:
      return ShardLoaded{AnyId<ShardId>(rng), AnyStatus(rng), AnyBytes(rng), AnyBytes(rng),
                         AnyBytes(rng),       AnyBytes(rng),  AnyBytes(rng)};
    case 2: return ShardProgress{AnyId<ShardId>(rng), AnyBytes(rng), AnyBytes(rng)};
    case 3: return PipelineOpened{AnyId<PipelineId>(rng), AnyStatus(rng)};
    case 4: return StepDone{AnyId<PipelineId>(rng), AnyResult(rng)};
    case 5:
      return PipelineBroken{AnyId<PipelineId>(rng), AnyStatus(rng),
                            Coin(rng) ? std::optional(AnyId<WorkerId>(rng)) : std::nullopt};
    case 6:
      return PullDone{AnyId<TransferId>(rng), AnyStatus(rng), AnyBytes(rng), rng.Uniform() * 1e6,
                      Coin(rng)};
    case 7: return Leaving{AnyTime(rng), AnyOrigin(rng)};
    case 8: return WorkerProfile{AnyText(rng, kProfileTextBytesMax)};
    case 9:
      return LinkProbed{AnyId<ProbeId>(rng), AnyStatus(rng), rng.Uniform() - 0.5,
                        rng.Uniform() * 1e12, AnyBytes(rng)};
    case 10: return MayLeave{AnyTime(rng), AnyOrigin(rng)};
    default: return Staying{};
  }
}

ToWorker RandomToWorker(Rng& rng, size_t kind) {
  switch (kind) {
    case 0:
      return Welcome{AnyId<WorkerId>(rng),
                     AnyId<Term>(rng),
                     {AnyDuration(rng).ns / 2 + 1},
                     AnyProtocol(rng),
                     Coin(rng) ? std::optional(AnyText(rng, kNameBytesMax)) : std::nullopt};
    case 1: return Refused{AnyStatus(rng), Coin(rng)};
    case 2: return AnyLoad(rng);
    case 3: return UnloadShard{AnyId<ShardId>(rng)};
    case 4: return AnyOpenPipeline(rng);
    case 5: return ClosePipeline{AnyId<PipelineId>(rng)};
    case 6: return AnyPipelineStep(rng);
    case 7: return ExportKv{AnyHandle(rng), AnyIndices(rng, 50), AnyInt(rng), AnyDuration(rng)};
    case 8: return ReleaseKv{AnyHandle(rng)};
    case 9: return AnyPull(rng);
    case 10: return Leave{AnyText(rng, kStatusBytesMax), Coin(rng)};
    case 12:
      return ProbeLink{AnyId<ProbeId>(rng), static_cast<ProbedLink>(rng.Between(0, 2)),
                       AnyAddress(rng)};
    case 13:
      return TokenTable{AnyText(rng), std::make_shared<const std::string>(
                                          std::string("\n\0\xff", 3) + AnyText(rng, 5000))};
    default: return ReturnBlocks{AnyId<PipelineId>(rng), rng.Next(), AnyIndices(rng, 50)};
  }
}

PeerMessage RandomPeerMessage(Rng& rng, size_t kind) {
  if (kind == 0) return AnyPipelineStep(rng);
  return BatchOrder{AnyId<ShardId>(rng), AnyVector(rng, 10, [&] {
                      return BatchOrder::Part{AnyId<PipelineId>(rng), AnyId<StepId>(rng)};
                    })};
}

Heartbeat RandomHeartbeat(Rng& rng) {
  return {AnyId<Incarnation>(rng), rng.Next(),    rng.Next(),         AnyBytes(rng),
          AnyBytes(rng),           AnyBytes(rng), rng.Next() % 2 == 0};
}

Echo RandomEcho(Rng& rng) {
  const auto bytes = [&] {
    return static_cast<uint32_t>(AnyUpTo(rng, static_cast<int64_t>(kEchoBytesMax)));
  };
  return {bytes(), bytes()};
}

PipelineStep DecodeStep(int sequences) {
  auto plan = std::make_shared<StepPlan>();
  plan->id = StepId(123456);
  for (int i = 0; i < sequences; ++i) {
    SequenceStep& s = plan->sequences.emplace_back();
    s.id = SequenceId(100000 + static_cast<uint64_t>(i) * 3);
    s.start = 700 + i * 13;
    s.num_tokens = 1;
    s.first_token = i;
    s.keep_blocks = s.start / 16;
    s.first_new_block = static_cast<int32_t>(plan->blocks.size());
    s.num_new_blocks = i % 16 == 0 ? 1 : 0;
    s.logits = LogitsWanted::kLast;
    plan->tokens.push_back(i * 1999 % 128000);
    if (s.num_new_blocks == 1) plan->blocks.push_back(i * 31);
  }
  return {PipelineId(7), std::move(plan), 0};
}

}  // namespace millrace::wire::testing
