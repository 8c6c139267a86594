// The one test of what follows step plans: SequenceTables against a naive model, and StepChecker
// against a naive judge, on random plans and on random damage to them.
#include "core/sequence_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/rng.h"
#include "core/step_checker.h"

namespace millrace {
namespace {

constexpr StepLimits kLimits = {.block_size = 4,
                                .num_blocks = 12,
                                .num_host_blocks = 3,
                                .max_batched_tokens = 20,
                                .max_model_len = 24,
                                .vocab_size = 50};

// A pipeline's sequences by definition: plain tables, copied whole.
using Tables = std::map<SequenceId, std::vector<BlockIndex>>;

Tables After(Tables tables, const StepPlan& plan) {
  for (const SequenceId id : plan.released) tables.erase(id);
  for (const SequenceStart& start : plan.started) tables[start.id] = {};
  for (const SequenceStep& s : plan.sequences) {
    std::vector<BlockIndex>& table = tables[s.id];
    table.resize(static_cast<size_t>(s.keep_blocks));
    for (int i = 0; i < s.num_new_blocks; ++i) {
      table.push_back(plan.blocks[static_cast<size_t>(s.first_new_block + i)]);
    }
  }
  return tables;
}

bool InRange(int64_t value, int64_t first, int64_t end) { return value >= first && value < end; }

bool TokensExist(const std::vector<TokenId>& tokens) {
  return std::ranges::all_of(tokens, [](TokenId t) { return InRange(t, 0, kLimits.vocab_size); });
}

bool CopiesExist(const std::vector<BlockCopy>& copies, int from, int to) {
  return std::ranges::all_of(
      copies, [&](const BlockCopy& c) { return InRange(c.from, 0, from) && InRange(c.to, 0, to); });
}

bool StartIsSound(const SequenceStart& start) {
  if (!start.prompt || !start.params) return false;
  std::vector<TokenId> named = start.params->stop_token_ids;
  for (const auto& [token, bias] : start.params->logit_bias) named.push_back(token);
  return TokensExist(named) && TokensExist(*start.prompt) &&
         (!start.output || TokensExist(*start.output));
}

// The rules of core/step_plan.h and the limits, one by one.
bool IsSound(const Tables& tables, const StepPlan& plan) {
  std::set<SequenceId> known, in_step;
  for (const auto& [id, table] : tables) known.insert(id);
  for (const SequenceId id : plan.released) {
    if (known.erase(id) == 0) return false;
  }
  for (const SequenceStart& start : plan.started) {
    if (!StartIsSound(start) || !known.insert(start.id).second) return false;
  }
  if (plan.sequences.empty() || std::ssize(plan.tokens) > kLimits.max_batched_tokens) return false;
  const int device = kLimits.num_blocks, host = kLimits.num_host_blocks;
  if (!TokensExist(plan.tokens) || !CopiesExist(plan.copies, device, device) ||
      !CopiesExist(plan.swap_out, device, host) || !CopiesExist(plan.swap_in, host, device)) {
    return false;
  }
  if (!std::ranges::all_of(plan.blocks, [&](int b) { return InRange(b, 0, device); })) return false;
  int64_t tokens = 0;
  for (const SequenceStep& s : plan.sequences) {
    if (!known.contains(s.id) || !in_step.insert(s.id).second) return false;
    const bool fresh = std::ranges::count(plan.started, s.id, &SequenceStart::id) > 0;
    const int64_t held = fresh ? 0 : std::ssize(tables.at(s.id));
    if (!InRange(s.keep_blocks, 0, held + 1) || s.num_tokens < 1 || s.start < 0) return false;
    if (s.first_token != tokens) return false;
    tokens += s.num_tokens;
    if (s.first_new_block < 0 || s.num_new_blocks < 0) return false;
    const int64_t end_block = int64_t{s.first_new_block} + s.num_new_blocks;
    if (tokens > std::ssize(plan.tokens) || end_block > std::ssize(plan.blocks)) return false;
    const int64_t end = int64_t{s.start} + s.num_tokens;
    const int64_t blocks = int64_t{s.keep_blocks} + s.num_new_blocks;
    if (end > kLimits.max_model_len || end > blocks * kLimits.block_size) return false;
    if (!s.only_layers) continue;
    if (s.only_layers->begin < 0 || s.only_layers->begin >= s.only_layers->end) return false;
    if (s.logits != LogitsWanted::kNone) return false;
  }
  return tokens == std::ssize(plan.tokens);
}

class PlanMaker {
 public:
  explicit PlanMaker(uint64_t seed) : rng_(seed) {}

  // A sound plan for sequences with these tables.
  StepPlan Sound(const Tables& tables) {
    StepPlan plan{.id = StepId(++steps_)};
    Tables here = tables;
    for (const auto& [id, table] : tables) {
      if (Pick(0, 7) > 0) continue;
      plan.released.push_back(id);
      here.erase(id);
    }
    while (here.empty() || (here.size() < 6 && Pick(0, 2) == 0)) {
      plan.started.push_back(Start());
      here[plan.started.back().id] = {};
    }
    for (const auto& [id, table] : here) {
      if (std::ssize(plan.tokens) + 4 > kLimits.max_batched_tokens) break;
      if (plan.sequences.empty() || Pick(0, 1) > 0) AddStep(id, table, plan);
    }
    Copies(plan);
    return plan;
  }

  // Changes one number or entry, most of the time so that the plan is no longer sound.
  void Damage(StepPlan& plan) {
    static constexpr int32_t kBad[] = {
        -1, 1, 3, 12, 50, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
    const int32_t bad = kBad[Pick(0, 6)];
    SequenceStep& s = AnyOf(plan.sequences);
    switch (Pick(0, 19)) {
      case 0: s.id = SequenceId(static_cast<uint64_t>(Pick(1, 20))); break;
      case 1: s.start = bad; break;
      case 2: s.num_tokens = bad; break;
      case 3: s.first_token = bad; break;
      case 4: s.keep_blocks = bad; break;
      case 5: s.first_new_block = bad; break;
      case 6: s.num_new_blocks = bad; break;
      case 7: s.only_layers = LayerRange{Pick(-1, 2), Pick(0, 2)}; break;
      case 8: plan.sequences.push_back(s); break;
      case 9: plan.sequences.erase(plan.sequences.begin()); break;
      case 10: AnyOf(plan.tokens) = bad; break;
      case 11: plan.tokens.push_back(1); break;
      case 12: plan.tokens.pop_back(); break;
      case 13: plan.blocks.push_back(bad); break;
      case 14: plan.blocks.clear(); break;
      case 15: plan.copies.push_back({bad, 0}); break;
      case 16: plan.swap_in.push_back({2, bad}); break;
      case 17: plan.swap_out.push_back({bad, 2}); break;
      case 18: plan.released.emplace_back(static_cast<uint64_t>(Pick(1, 20))); break;
      default: DamageStart(plan);
    }
  }

 private:
  int Pick(int low, int high) { return static_cast<int>(rng_.Between(low, high)); }
  template <typename T>
  T& AnyOf(std::vector<T>& all) {
    return all[static_cast<size_t>(Pick(0, static_cast<int>(all.size()) - 1))];
  }

  SequenceStart Start() {
    auto params = std::make_shared<SamplingParams>();
    params->stop_token_ids = {7};
    params->logit_bias = {{49, 1.0f}};
    return {.id = SequenceId(++sequences_),
            .params = std::move(params),
            .prompt = std::make_shared<const std::vector<TokenId>>(3, 49),
            .output = std::make_shared<const std::vector<TokenId>>(2, 0)};
  }

  void AddStep(SequenceId id, const std::vector<BlockIndex>& table, StepPlan& plan) {
    SequenceStep s{.id = id};
    s.num_tokens = Pick(1, 4);
    s.start = Pick(0, kLimits.max_model_len - s.num_tokens);
    s.first_token = static_cast<int32_t>(plan.tokens.size());
    s.keep_blocks = Pick(0, static_cast<int>(table.size()));
    s.first_new_block = static_cast<int32_t>(plan.blocks.size());
    const int needed = (s.start + s.num_tokens + kLimits.block_size - 1) / kLimits.block_size;
    s.num_new_blocks = std::max(0, needed - s.keep_blocks) + Pick(0, 1);
    for (int i = 0; i < s.num_new_blocks; ++i) {
      plan.blocks.push_back(Pick(0, kLimits.num_blocks - 1));
    }
    for (int i = 0; i < s.num_tokens; ++i) plan.tokens.push_back(Pick(0, kLimits.vocab_size - 1));
    if (Pick(0, 3) == 0) {
      s.only_layers = LayerRange{0, Pick(1, 3)};
    } else if (Pick(0, 1) == 0) {
      s.logits = LogitsWanted::kLast;
    }
    plan.sequences.push_back(s);
  }

  void Copies(StepPlan& plan) {
    const auto device = [&] { return Pick(0, kLimits.num_blocks - 1); };
    const auto host = [&] { return Pick(0, kLimits.num_host_blocks - 1); };
    if (Pick(0, 2) == 0) plan.copies.push_back({device(), device()});
    if (Pick(0, 2) == 0) plan.swap_in.push_back({host(), device()});
    if (Pick(0, 2) == 0) plan.swap_out.push_back({device(), host()});
  }

  void DamageStart(StepPlan& plan) {
    if (plan.started.empty() || Pick(0, 5) == 0) plan.started.push_back(Start());
    SequenceStart& start = AnyOf(plan.started);
    const auto bad = std::make_shared<const std::vector<TokenId>>(1, Pick(0, 1) == 0 ? -1 : 50);
    auto params = std::make_shared<SamplingParams>();
    if (Pick(0, 1) == 0) params->stop_token_ids = *bad;
    if (Pick(0, 1) == 0) params->logit_bias = {{bad->front(), 1.0f}};
    switch (Pick(0, 5)) {
      case 0: start.prompt = nullptr; break;
      case 1: start.params = nullptr; break;
      case 2: start.prompt = bad; break;
      case 3: start.output = bad; break;
      case 4: start.params = params; break;
      default: plan.started.push_back(start);
    }
  }

  Rng rng_;
  uint64_t steps_ = 0, sequences_ = 0;
};

void ExpectViews(const Tables& tables, const StepPlan& plan, std::span<const SequenceView> views) {
  ASSERT_EQ(views.size(), plan.sequences.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const SequenceStep& s = plan.sequences[i];
    const SequenceView& view = views[i];
    ASSERT_EQ(view.id, s.id);
    EXPECT_EQ(view.started->id, s.id);
    EXPECT_TRUE(std::ranges::equal(view.blocks, tables.at(s.id)));
    EXPECT_TRUE(std::ranges::equal(view.new_blocks(), plan.NewBlocksOf(s)));
    EXPECT_EQ(view.start, s.start);
    EXPECT_EQ(view.end(), s.start + s.num_tokens);
    EXPECT_TRUE(std::ranges::equal(view.tokens, plan.TokensOf(s)));
    EXPECT_EQ(view.logits, s.logits);
    EXPECT_EQ(view.only_layers, s.only_layers);
  }
}

TEST(SequenceTables, FollowPlansLikePlainTables) {
  for (uint64_t seed = 1; seed <= 300 && !::testing::Test::HasFailure(); ++seed) {
    PlanMaker maker(seed);
    StepChecker checker(kLimits);
    SequenceTables followed;
    Tables tables;
    for (int step = 0; step < 40; ++step) {
      const StepPlan plan = maker.Sound(tables);
      ASSERT_TRUE(IsSound(tables, plan)) << "seed " << seed << " step " << step;
      const Status checked = checker.Check(plan);
      ASSERT_TRUE(checked.ok()) << checked.ToString();
      tables = After(std::move(tables), plan);
      ExpectViews(tables, plan, followed.Advance(plan));
      ASSERT_EQ(followed.num_sequences(), tables.size());
    }
  }
}

// A checker is ahead of the tables: it has seen plans that still wait to run. What it passes runs,
// what breaks a rule does not pass.
TEST(StepChecker, RefusesExactlyWhatBreaksARule) {
  int refused = 0, passed = 0;
  for (uint64_t seed = 1; seed <= 40'000 && !::testing::Test::HasFailure(); ++seed) {
    PlanMaker maker(seed);
    StepChecker checker(kLimits);
    std::vector<StepPlan> waiting;
    Tables tables;
    for (uint64_t step = 0; step < seed % 4; ++step) {
      waiting.push_back(maker.Sound(tables));
      ASSERT_TRUE(checker.Check(waiting.back()).ok());
      tables = After(std::move(tables), waiting.back());
    }
    StepPlan plan = maker.Sound(tables);
    maker.Damage(plan);
    const bool sound = IsSound(tables, plan);
    const Status checked = checker.Check(plan);
    ASSERT_EQ(checked.ok(), sound) << "seed " << seed << ": " << checked.ToString();
    ++(sound ? passed : refused);
    if (!sound) {
      EXPECT_EQ(checked.code(), StatusCode::kInvalidArgument);
      continue;
    }
    SequenceTables followed;
    for (const StepPlan& earlier : waiting) followed.Advance(earlier);
    ExpectViews(After(std::move(tables), plan), plan, followed.Advance(plan));
  }
  EXPECT_GT(refused, 20'000);
  EXPECT_GT(passed, 1'000);
}

TEST(StepChecker, SaysWhatIsWrong) {
  const auto error = [](auto damage) {
    StepChecker checker(kLimits);
    StepPlan plan{.id = StepId(1), .tokens = {1, 2}, .blocks = {3}};
    plan.started = {{SequenceId(5), std::make_shared<const SamplingParams>(), 0,
                     std::make_shared<const std::vector<TokenId>>(2, 1)}};
    plan.sequences = {{.id = SequenceId(5), .num_tokens = 2, .num_new_blocks = 1}};
    damage(plan);
    return checker.Check(plan).message();
  };
  EXPECT_EQ(error([](StepPlan&) {}), "");
  EXPECT_EQ(error([](StepPlan& p) { p.blocks[0] = 12; }),
            "block 12 does not exist in a pool of 12");
  EXPECT_EQ(error([](StepPlan& p) { p.tokens[1] = 50; }),
            "token 50 is outside the vocabulary of 50");
  EXPECT_EQ(error([](StepPlan& p) { p.started.clear(); }), "sequence 5 was never started");
  EXPECT_EQ(error([](StepPlan& p) { p.started[0].prompt = nullptr; }),
            "the start of sequence 5: no prompt or no parameters");
  EXPECT_EQ(error([](StepPlan& p) { p.sequences[0].start = 3; }),
            "sequence 5 is beyond its blocks");
  EXPECT_EQ(error([](StepPlan& p) {
              p.swap_in = {{3, 0}};
            }),
            "a copy from block 3 (pool of 3) to block 0 (pool of 12) is invalid");
}

TEST(StepChecker, ATestStepIsTheFirstAndEmpty) {
  StepPlan test;
  test.id = kTestStep;
  EXPECT_TRUE(StepChecker(kLimits).Check(test).ok());
  test.tokens = {1};
  EXPECT_EQ(StepChecker(kLimits).Check(test).code(), StatusCode::kInvalidArgument);
  test.tokens.clear();
  StepChecker twice(kLimits);
  EXPECT_TRUE(twice.Check(test).ok());
  EXPECT_EQ(twice.Check(test).message(), "a test step must be the first one, and empty");
  StepPlan none;
  none.id = StepId(1);
  EXPECT_EQ(StepChecker(kLimits).Check(none).message(),
            "a step must not have 0 sequences and 0 tokens");
}

}  // namespace
}  // namespace millrace
