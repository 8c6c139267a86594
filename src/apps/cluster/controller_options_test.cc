#include "apps/cluster/controller_options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace millrace::apps {
namespace {

TEST(ControllerHostOptions, PassesOnEverySchedulerFlag) {
  EngineFlags flags;
  flags.block_size = 32;
  flags.max_num_seqs = 7;
  flags.max_num_batched_tokens = 99;
  flags.prefix_caching = false;
  flags.prefix_eviction = "slru";
  flags.preemption = sched::PreemptionMode::kSwap;
  flags.policy = sched::SchedulingPolicy::kPriority;
  flags.kv_policy = sched::KvPolicy::kOrcaMax;
  flags.max_waiting = 21;
  flags.seed = 5;
  LocalModel model;
  model.path.name = "demo";
  model.spec.num_layers = 3;
  model.spec.vocab_size = 200;
  model.kv = {.num_blocks = 11, .num_host_blocks = 13, .max_model_len = 300};
  model.generation.eos = {1, 2};
  const auto options = ControllerOptionsFor(flags, model);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->seed, 5u);
  EXPECT_EQ(options->controller.model, "demo");
  EXPECT_EQ(options->controller.num_layers, 3);
  EXPECT_FALSE(options->controller.step_log);
  const sched::SchedulerOptions& s = options->controller.scheduler;
  EXPECT_EQ(s.block_size, 32);
  EXPECT_EQ(s.num_blocks, 11);
  EXPECT_EQ(s.num_host_blocks, 13);
  EXPECT_EQ(s.max_num_seqs, 7);
  EXPECT_EQ(s.max_num_batched_tokens, 99);
  EXPECT_EQ(s.max_waiting, 21);
  EXPECT_EQ(options->controller.waiting_max, 21);
  EXPECT_EQ(s.max_model_len, 300);
  EXPECT_EQ(s.policy, sched::SchedulingPolicy::kPriority);
  EXPECT_EQ(s.kv_policy, sched::KvPolicy::kOrcaMax);
  EXPECT_EQ(s.preemption, sched::PreemptionMode::kSwap);
  EXPECT_FALSE(s.prefix_caching);
  EXPECT_EQ(s.prefix_eviction, "slru");
  EXPECT_EQ(s.eos_token_ids, (std::vector<TokenId>{1, 2}));
}

TEST(ControllerHostOptions, AStepLogThatCannotBeWrittenIsRefused) {
  EngineFlags flags;
  flags.step_log = testing::TempDir() + "controller_options_test.jsonl";
  const auto options = ControllerOptionsFor(flags, LocalModel());
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_TRUE(options->controller.step_log);
  std::filesystem::remove(flags.step_log);
  flags.step_log = testing::TempDir() + "no/such/folder/steps.jsonl";
  EXPECT_NE(ControllerOptionsFor(flags, LocalModel()).status().message().find("--step-log"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::apps
