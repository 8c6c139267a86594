#include "tests/fault/scenario.h"

#include <algorithm>

#include "base/rng.h"
#include "cluster/control/parts/bit_class.h"

namespace millrace::sim::fault {
namespace {

constexpr Time kTestRequestsFrom{100'000'000}, kTestRequestsUntil{2'500'000'000};
constexpr Time kFaultsFrom{50'000'000}, kFaultsUntil{3'500'000'000};

struct KindTraits {
  std::string_view name;
  int weight;
  int64_t least_ms, most_ms;  // range of its duration
};
constexpr std::array<KindTraits, kFaultKinds> kKinds = {{
    {"kill", 6, 100, 1500},
    {"vanish", 2, 100, 3000},
    {"stop", 4, 50, 6000},
    {"hang-compute", 2, 0, 0},
    {"cut", 4, 20, 6000},
    {"cut-one-way", 4, 20, 6000},
    {"slow", 2, 500, 3000},
    {"reset", 3, 0, 0},
    {"twice", 4, 500, 3000},
    {"same-name", 2, 0, 0},
    {"leave", 2, 300, 2000},
    {"drain", 2, 0, 0},
    {"migrate", 4, 0, 0},
    {"plan", 2, 0, 0},
    {"stop-controller", 2, 50, 6000},
    {"restart-controller", 2, 100, 1500},
    {"still", 0, 500, 9000},  // this and the others are drawn separately
    {"two-losses", 0, 100, 1500},
    {"pause", 0, 500, 9000},
    {"restored-store", 0, 100, 1500},
}};

Time Between(Rng& rng, Time from, Time until) { return {rng.Between(from.ns, until.ns)}; }

FaultKind PickKind(Rng& rng) {
  int total = 0;
  for (const KindTraits& kind : kKinds) total += kind.weight;
  auto pick = static_cast<int>(rng.Between(0, total - 1));
  for (int k = 0; k < kFaultKinds; ++k) {
    if ((pick -= kKinds[k].weight) < 0) return static_cast<FaultKind>(k);
  }
  return FaultKind::kKill;
}

Fault MakeFault(Rng& rng, const Scenario& s, std::optional<FaultKind> only) {
  Fault f;
  f.kind = only ? *only : PickKind(rng);
  const KindTraits& traits = kKinds[static_cast<size_t>(f.kind)];
  f.at = Between(rng, kFaultsFrom, kFaultsUntil);
  // Short durations are as likely as long ones: half of the faults end before they are noticed.
  const int64_t most = rng.Between(0, 1) ? traits.most_ms : (traits.least_ms + traits.most_ms) / 4;
  f.lasts = Duration::Millis(rng.Between(traits.least_ms, std::max(traits.least_ms, most)));
  f.a = static_cast<int>(rng.Between(1, s.workers));
  // A link to the controller, or to another worker.
  f.b = s.workers > 1 && rng.Between(0, 1) ? static_cast<int>(rng.Between(1, s.workers - 1)) : 0;
  if (f.b >= f.a) ++f.b;
  if (rng.Between(0, 1)) std::swap(f.a, f.b);
  const bool of_link = f.kind == FaultKind::kCut || f.kind == FaultKind::kCutOneWay ||
                       f.kind == FaultKind::kSlow || f.kind == FaultKind::kReset ||
                       f.kind == FaultKind::kTwice;
  if (!of_link && f.a == 0) std::swap(f.a, f.b);
  f.extra = Duration::Millis(f.kind == FaultKind::kHangCompute ? rng.Between(500, 12000)
                                                               : rng.Between(5, 400));
  return f;
}

// Kinds that came later. They are not drawn with the others, so that the other schedules stay the
// same.
void AddRareFaults(uint64_t seed, Scenario& s) {
  if (Mix64(seed ^ 0x7374696c6c) % 6 == 1) {
    Rng own(Mix64(seed ^ 0x7374696c6d));
    s.faults.push_back(MakeFault(own, s, FaultKind::kStill));
  }
  constexpr FaultKind kKindsOfTheirOwn[] = {FaultKind::kTwoLosses, FaultKind::kPause,
                                            FaultKind::kRestoredStore};
  const uint64_t pick = Mix64(seed ^ 0x72617265) % 18;
  if (pick >= std::size(kKindsOfTheirOwn)) return;
  Rng own(Mix64(seed ^ 0x72617266));
  s.faults.push_back(MakeFault(own, s, kKindsOfTheirOwn[pick]));
}

// The second of two losses, of another worker if there is one.
void AddSecondLosses(uint64_t seed, Scenario& s) {
  const size_t drawn = s.faults.size();
  for (size_t i = 0; i < drawn; ++i) {
    if (s.faults[i].kind != FaultKind::kTwoLosses || s.workers < 2) continue;
    const uint64_t own = Mix64(seed ^ (0x74776f + i));
    Fault second = s.faults[i];
    second.a =
        1 + (second.a + static_cast<int>(own % static_cast<uint64_t>(s.workers - 1))) % s.workers;
    second.at = second.at + Duration::Micros(static_cast<int64_t>(own % 100'000));
    s.faults.push_back(second);
  }
}

// Adds a chain of stages with these layers, each of `tp` workers.
void AddChain(Plan& plan, const std::vector<int>& cuts, int tp, StageRole role) {
  const int first = static_cast<int>(plan.stages.size());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    StagePlan& stage = plan.stages.emplace_back();
    stage.tensor_parallel = tp;
    stage.layers = {cuts[i], cuts[i + 1]};
    stage.role = role;
  }
  const int last = static_cast<int>(plan.stages.size()) - 1;
  plan.edges.push_back({std::nullopt, first, 100});
  for (int i = first; i < last; ++i) plan.edges.push_back({i, i + 1, 100});
  plan.edges.push_back({last, std::nullopt, 100});
}

std::vector<int> Cuts(Rng& rng, int layers, int stages) {
  std::vector<int> cuts = {0, layers};
  while (std::ssize(cuts) < stages + 1) {
    const auto cut = static_cast<int>(rng.Between(1, layers - 1));
    if (std::ranges::count(cuts, cut) == 0) cuts.push_back(cut);
  }
  std::ranges::sort(cuts);
  return cuts;
}

// Chains side by side, or separate prefill and decode, within `workers`.
Plan MakePlan(Rng& rng, const Scenario& s) {
  Plan plan;
  plan.model = "hash";
  plan.num_layers = s.model.num_layers;
  const bool apart = s.workers >= 2 && rng.Between(0, 1) == 0;
  const int chains = apart || s.workers >= 2 ? 2 : 1;
  int left = s.workers;
  for (int c = 0; c < chains; ++c) {
    const int most = std::min({left - (chains - 1 - c), 2, s.model.num_layers});
    const auto stages = static_cast<int>(rng.Between(1, std::max(1, most)));
    const StageRole role = !apart     ? StageRole::kBoth
                           : (c == 0) ? StageRole::kPrefill
                                      : StageRole::kDecode;
    AddChain(plan, Cuts(rng, s.model.num_layers, stages), 1, role);
    left -= stages;
  }
  return plan;
}

// Entry stages and exit stages, with an edge between any two: requests are routed one by one, and
// the pipelines of all routes share the workers.
Plan MakeRoutedPlan(uint64_t seed, const Scenario& s) {
  Rng rng(seed);
  Plan plan;
  plan.model = "hash";
  plan.num_layers = s.model.num_layers;
  plan.partial_inference = rng.Between(0, 1) == 0;
  const auto cut = static_cast<int>(rng.Between(1, s.model.num_layers - 1));
  const auto entries = static_cast<int>(rng.Between(s.workers == 3 ? 1 : 2, 2));
  for (int i = 0; i < s.workers; ++i) {
    const bool entry = i < entries;
    const int overlap = plan.partial_inference ? static_cast<int>(rng.Between(0, 1)) : 0;
    plan.stages.emplace_back().layers =
        entry ? LayerRange{0, cut} : LayerRange{cut - overlap, s.model.num_layers};
    if (entry) {
      plan.edges.push_back({std::nullopt, i, 100});
      for (int to = entries; to < s.workers; ++to) plan.edges.push_back({i, to, 100});
    } else {
      plan.edges.push_back({i, std::nullopt, 100});
    }
  }
  return plan;
}

// Stages of every role, with edges of every phase. The first worker does both, and its prefill,
// decode and whole requests share its memory. Workers may hold two stages. Hand-over edges may
// keep the KV of a prompt from some of the stages that decode.
Plan MakePhasedPlan(uint64_t seed, const Scenario& s) {
  Rng rng(seed);
  Plan plan;
  plan.model = "hash";
  plan.num_layers = s.model.num_layers;
  std::vector<std::vector<int>> prefills, decodes;
  const auto add = [&](LayerRange layers, StageRole role, int node) {
    plan.stages.push_back({.nodes = {node}, .layers = layers, .role = role});
    return static_cast<int>(plan.stages.size()) - 1;
  };
  const auto connect = [&](const std::vector<int>& chain, EdgePhase phase) {
    const auto flow = static_cast<double>(rng.Between(50, 200));
    std::optional<int> from;
    for (const int stage : chain)
      plan.edges.push_back({std::exchange(from, stage), stage, flow, phase});
    plan.edges.push_back({from, std::nullopt, flow, phase});
  };
  const auto serve = [&](const std::vector<int>& chain, StageRole role) {
    if (role != StageRole::kDecode) prefills.push_back(chain);
    if (role != StageRole::kPrefill) decodes.push_back(chain);
    if (role == StageRole::kBoth && rng.Between(0, 1) == 0) connect(chain, EdgePhase::kBoth);
  };
  const auto any_role = [&] { return static_cast<StageRole>(rng.Between(0, 2)); };
  serve({add({0, plan.num_layers}, StageRole::kBoth, 0)}, StageRole::kBoth);
  int node = 1;
  if (s.workers >= 3 && rng.Between(0, 1) == 0) {  // two pipelines in opposite directions
    const auto cut = static_cast<int>(rng.Between(1, plan.num_layers - 1));
    for (const auto& [front, back] : {std::pair(1, 2), std::pair(2, 1)}) {
      const StageRole role = any_role();
      const int first = add({0, cut}, role, front);
      serve({first, add({cut, plan.num_layers}, role, back)}, role);
    }
    node = 3;
  }
  for (; node < s.workers; ++node) {
    const StageRole role = any_role();
    serve({add({0, plan.num_layers}, role, node)}, role);
  }
  for (const auto& chain : prefills) connect(chain, EdgePhase::kPrefill);
  for (const auto& chain : decodes) connect(chain, EdgePhase::kDecode);
  if (rng.Between(0, 2) != 0) return plan;
  for (const auto& prefill : prefills) {
    const auto& decode = decodes[static_cast<size_t>(rng.Between(0, std::ssize(decodes) - 1))];
    for (const int from : prefill) {
      for (const int to : decode) {
        if (from != to) plan.edges.push_back({from, to, 100, EdgePhase::kHandOver});
      }
    }
  }
  return plan;
}

// Two pipelines, each for the workers of one class. With four workers one of them may hand KV over
// from prefill to decode.
Plan MakePlanOfClasses(uint64_t seed, const Scenario& s) {
  Rng rng(seed);
  Plan plan;
  plan.model = "hash";
  plan.num_layers = s.model.num_layers;
  const int fewer = s.workers / 2, more = s.workers - fewer;
  if (fewer < 2 || rng.Between(0, 1) == 0) {
    for (const int most : {more, fewer}) {
      const auto stages = static_cast<int>(rng.Between(1, std::min(most, plan.num_layers)));
      AddChain(plan, Cuts(rng, plan.num_layers, stages), 1, StageRole::kBoth);
    }
    return plan;
  }
  using enum EdgePhase;
  for (const auto& [role, phase] :
       {std::pair(StageRole::kPrefill, kPrefill), std::pair(StageRole::kDecode, kDecode),
        std::pair(StageRole::kBoth, kBoth)}) {
    const auto stage = static_cast<int>(plan.stages.size());
    plan.stages.push_back({.layers = {0, plan.num_layers}, .role = role});
    plan.edges.push_back({std::nullopt, stage, 100, phase});
    plan.edges.push_back({stage, std::nullopt, 100, phase});
  }
  plan.edges.push_back({0, 1, 100, kHandOver});
  return plan;
}

// Workers of two classes, in the automatic layout or in a plan for them.
void PickClasses(uint64_t seed, Scenario& s) {
  s.classes = 2;
  s.cross_class_replay = Mix64(seed ^ 1) % 2 == 1;
  s.plan.reset();
  if (s.shape.tensor_parallel == 1 && Mix64(seed ^ 2) % 2 == 1) {
    s.plan = MakePlanOfClasses(Mix64(seed ^ 3), s);
  }
}

// Several pipelines for the automatic layout, if there are enough workers.
void PickPipelines(uint64_t seed, Scenario& s) {
  Rng rng(seed);
  const bool apart = rng.Between(0, 2) > 0;
  s.shape.stages = std::min(s.shape.stages, s.workers / (2 * s.shape.tensor_parallel));
  if (s.shape.stages == 0) {
    s.shape.stages = 1;
    return;
  }
  const int pipelines = s.workers / (s.shape.stages * s.shape.tensor_parallel);
  if (!apart) {
    s.shape.replicas = pipelines;
    return;
  }
  s.shape.prefill = static_cast<int>(rng.Between(1, pipelines - 1));
  s.shape.decode = pipelines - s.shape.prefill;
}

TestRequest MakeTestRequest(Rng& rng) {
  TestRequest q;
  q.at = Between(rng, kTestRequestsFrom, kTestRequestsUntil);
  // Few distinct tokens: prefixes are shared.
  for (int64_t i = rng.Between(1, 20); i > 0; --i) {
    q.prompt.push_back(static_cast<TokenId>(rng.Between(0, 1)));
  }
  q.params.max_tokens = static_cast<int>(rng.Between(5, 30));
  q.params.temperature = rng.Between(0, 1) ? 1.0 : 0.0;
  q.params.ignore_eos = rng.Between(0, 1) == 0;
  q.params.n = rng.Between(0, 5) == 0 ? 2 : 1;
  q.seed = rng.Next();
  // The draws are those of before there were grammars and vectors, so that known seeds stay the
  // same.
  if (Mix64(q.seed) % 3 == 0 && !q.params.ignore_eos) {
    q.params.grammar = GrammarOf(GrammarKind::kRegex, "of the hash model");
  } else if (Mix64(q.seed) % 3 == 1 && q.params.n == 1) {
    q.params.pooling = Mix64(q.seed) % 2 == 0 ? Pooling::kLast : Pooling::kMean;
  }
  if (rng.Between(0, 9) == 0) q.abort_at = q.at + Duration::Millis(rng.Between(0, 1500));
  return q;
}

void PickShape(Rng& rng, const ScenarioOptions& options, Scenario& s) {
  s.workers = options.workers.value_or(static_cast<int>(rng.Between(1, 4)));
  s.model.num_layers = static_cast<int>(rng.Between(2, 6));
  s.model.heads = 2;
  s.model.vocab_size = 500;
  s.model.seed = rng.Next();
  s.eos_token_ids = {7};
  if (s.workers >= 2 && rng.Between(0, 4) == 0) s.shape.tensor_parallel = 2;
  const int most = std::min(3, s.workers / s.shape.tensor_parallel);
  s.shape.stages =
      std::min(static_cast<int>(rng.Between(1, std::max(1, most))), s.model.num_layers);
  if (s.shape.tensor_parallel == 1 && rng.Between(0, 2) == 0) s.plan = MakePlan(rng, s);
  s.scheduler.block_size = rng.Between(0, 1) ? 4 : 8;
  s.scheduler.max_num_seqs = 8;
  s.scheduler.max_num_batched_tokens = rng.Between(0, 1) ? 16 : 64;
  s.scheduler.max_model_len = 64;
  s.scheduler.prefix_caching = rng.Between(0, 1) == 0;
  s.scheduler.eos_token_ids = s.eos_token_ids;
  s.hold_limit = Duration::Millis(rng.Between(0, 2) ? 4000 : rng.Between(20, 500));
  // From the need of one request (two sequences) to ample.
  s.memory_tokens = int64_t{s.model.num_layers} * (rng.Between(0, 1) ? 160 : 512);
}

}  // namespace

Plan RandomPlan(uint64_t seed, const Scenario& scenario, int workers) {
  Scenario s = scenario;
  s.workers = workers;
  if (workers >= 2 && Mix64(seed) % 3 == 1) return MakePhasedPlan(seed, s);
  Rng rng(seed);
  return MakePlan(rng, s);
}

std::string_view FaultName(FaultKind kind) { return kKinds[static_cast<size_t>(kind)].name; }

stage::HashModel Scenario::ModelOf(int bit_class) const {
  stage::HashModel of_class = model;
  if (bit_class > 0) of_class.seed = HashCounter(model.seed, static_cast<uint64_t>(bit_class));
  return of_class;
}

std::string Scenario::FingerprintOf(int bit_class) const {
  return cluster::BitsFingerprint(kModelFingerprint, NumericClass(bit_class), "");
}

Scenario MakeScenario(uint64_t seed, const ScenarioOptions& options) {
  Rng rng(Mix64(seed ^ 0x6c6162));
  Scenario s;
  s.seed = seed;
  PickShape(rng, options, s);
  const auto test_requests = options.requests.value_or(static_cast<int>(rng.Between(3, 8)));
  for (int i = 0; i < test_requests; ++i) s.test_requests.push_back(MakeTestRequest(rng));
  std::ranges::sort(s.test_requests, {}, &TestRequest::at);
  const auto faults = options.faults.value_or(static_cast<int>(rng.Between(1, 4)));
  for (int i = 0; i < faults; ++i) s.faults.push_back(MakeFault(rng, s, options.only));
  // Not drawn from `rng`, so that the other schedules stay the same.
  for (size_t i = 0; i < s.faults.size(); ++i) {
    const uint64_t own = Mix64(seed ^ (0x7374617973 + i));
    if (s.faults[i].kind != FaultKind::kLeave) continue;
    // Requests of a machine that is taken back may finish there, those of a stopped process not.
    if (Mix64(own ^ 1) % 2 == 0) s.faults[i].origin.source = NoticeSource::kAws;
    if (own % 2 == 0) continue;
    s.faults[i].withdrawn = true;
    // Before the worker has left, mostly: that takes milliseconds.
    s.faults[i].lasts = Duration::Micros(static_cast<int64_t>(Mix64(own) % 60'000));
  }
  if (!options.faults && !options.only) AddRareFaults(seed, s);
  AddSecondLosses(seed, s);
  s.tight_memory = Mix64(seed ^ 0x746967687400) % 8 == 3;
  if (s.workers >= 3 && s.shape.tensor_parallel == 1 && Mix64(seed ^ 0x726f75746564) % 3 == 1) {
    s.plan = MakeRoutedPlan(Mix64(seed), s);
  }
  const bool phased = s.workers >= 2 && s.shape.tensor_parallel == 1;
  if (phased && Mix64(seed ^ 0x706861736564) % 4 == 1) s.plan = MakePhasedPlan(Mix64(seed), s);
  if (!s.plan && s.workers >= 2 && Mix64(seed ^ 0x726f6c657300) % 2 == 1) {
    PickPipelines(Mix64(seed ^ 1), s);
  }
  const bool two = options.two_classes.value_or(Mix64(seed ^ 0x636c6173736573) % 6 == 1);
  // The workers of the larger class suffice for a stage.
  const bool suffice = s.workers >= 2 && (s.workers + 1) / 2 >= s.shape.tensor_parallel;
  if (two && suffice) PickClasses(Mix64(seed ^ 4), s);
  const bool may_plan = s.classes == 1 && s.shape.tensor_parallel == 1;
  s.autopilot = may_plan && options.autopilot.value_or(Mix64(seed ^ 0x6175746f) % 4 == 1);
  s.quiet_at = kTestRequestsUntil;
  for (const Fault& f : s.faults) {
    if (f.kind == FaultKind::kPlan) {
      s.later_plans.push_back(MakePlan(rng, s));
      const uint64_t own = Mix64(seed ^ s.later_plans.size());
      if (s.classes > 1) {
        s.later_plans.back() = MakePlanOfClasses(own, s);
      } else if (phased && own % 3 == 1) {
        s.later_plans.back() = MakePhasedPlan(own, s);
      }
    }
    s.quiet_at = std::max(s.quiet_at, f.at + f.lasts + f.extra);
  }
  return s;
}

}  // namespace millrace::sim::fault
