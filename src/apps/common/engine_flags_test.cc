#include "apps/common/engine_flags.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// 16 tokens of 64 KiB each.
KvDemand Demand(int64_t available_bytes, int model_max_len) {
  return {1 << 20, available_bytes, model_max_len};
}

TEST(PlanKv, DefaultIsWhatTheSequencesNeedOrAShareOfTheMemory) {
  EngineFlags flags;
  flags.max_num_seqs = 4;
  auto plan = PlanKv(flags, Demand(100 * kGib, 1000));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 4 * 63);
  EXPECT_EQ(plan->max_model_len, 1000);
  EXPECT_EQ(plan->reason, "enough for 4 sequences");
  plan = PlanKv(flags, Demand(kGib / 4, 1000));  // 40 % of 256 MiB: 102 blocks
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 102);
  EXPECT_FALSE(plan->lowered);
}

TEST(PlanKv, LowersTheModelsLengthButNotTheUsers) {
  EngineFlags flags;
  flags.num_blocks = 10;
  auto plan = PlanKv(flags, Demand(kGib, 1000));
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->lowered);
  EXPECT_EQ(plan->max_model_len, 160);
  flags.max_model_len = 161;
  const std::string message = PlanKv(flags, Demand(kGib, 1000)).status().message();
  EXPECT_EQ(message,
            "--max-model-len 161 needs 11 KV blocks (11.0 MiB), and 10 fit (10.0 MiB); lower "
            "--max-model-len to 160 or raise --kv-cache-memory");
  flags.max_model_len = 160;
  EXPECT_FALSE(PlanKv(flags, Demand(kGib, 1000))->lowered);
}

TEST(PlanKv, CountsBytesAndSwapSpace) {
  EngineFlags flags;
  flags.kv_bytes = (5 << 20) + 1;
  flags.swap_gib = 0.5;
  auto plan = PlanKv(flags, Demand(0, 64));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 5);
  EXPECT_EQ(plan->num_host_blocks, 512);
  flags.kv_bytes = 100;
  EXPECT_FALSE(PlanKv(flags, Demand(0, 64)).ok());  // not one block
  flags.kv_bytes.reset();
  EXPECT_FALSE(PlanKv(flags, Demand(0, 64)).ok());  // no memory at all
}

TEST(CheckKvFits, NamesTheNumbers) {
  const MemoryAvailable free{20 * kGib, "control group limit"};
  EXPECT_TRUE(CheckKvFits(20 * kGib, "--kv-cache-memory", free).ok());
  EXPECT_EQ(CheckKvFits(40 * kGib, "--kv-cache-memory", free).message(),
            "--kv-cache-memory asks for 40.0 GiB of memory, and 20.0 GiB are free (control group "
            "limit); give at most 18.0 GiB");
}

Command WithSizeOptions(EngineFlags* flags) {
  Command command;
  AddStepOptions(command, "Steps", flags);
  AddBlockSizeOption(command, "Steps", flags);
  AddPrefixCachingOption(command, "Steps", flags);
  return command;
}

TEST(WithServerSizes, AnOptionComesBeforeTheServerAndTheServerBeforeTheDefault) {
  EngineFlags flags;
  Command command = WithSizeOptions(&flags);
  const ServerSizes server{.max_num_seqs = 64,
                           .max_num_batched_tokens = 192,
                           .max_model_len = 512,
                           .enable_prefix_caching = false};
  EngineFlags found = WithServerSizes(flags, server);
  EXPECT_EQ(found.max_num_seqs, 64);
  EXPECT_EQ(found.max_num_batched_tokens, 192);
  EXPECT_EQ(found.max_model_len, 512);
  EXPECT_FALSE(found.prefix_caching);
  EXPECT_EQ(found.block_size, EngineFlags().block_size);
  // Also an option that gives the default.
  const std::string seqs = std::to_string(EngineFlags().max_num_seqs);
  ASSERT_TRUE(command.Named("max-num-seqs").set({seqs}).ok());
  ASSERT_TRUE(command.Named("block-size").set({"32"}).ok());
  ASSERT_TRUE(command.Named("enable-prefix-caching").set({"true"}).ok());
  flags.max_model_len = 100;
  found = WithServerSizes(flags, server);
  EXPECT_EQ(found.max_num_seqs, EngineFlags().max_num_seqs);
  EXPECT_EQ(found.max_num_batched_tokens, 192);
  EXPECT_EQ(found.max_model_len, 100);
  EXPECT_EQ(found.block_size, 32);
  EXPECT_TRUE(found.prefix_caching);
}

TEST(LimitWorkersKv, NumBlocksIsOnlyALimit) {
  EngineFlags flags;
  flags.swap_gib = 0.5;
  auto plan = LimitWorkersKv(flags, Demand(0, 1000));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 0);
  EXPECT_EQ(plan->num_host_blocks, 512);
  EXPECT_EQ(plan->max_model_len, 1000);
  flags.num_blocks = 10;
  plan = LimitWorkersKv(flags, Demand(0, 1000));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 10);
  EXPECT_EQ(plan->max_model_len, 160);  // what ten blocks hold
  flags.max_model_len = 161;
  EXPECT_FALSE(LimitWorkersKv(flags, Demand(0, 1000)).ok());
  flags.num_blocks.reset();
  flags.max_model_len = 1001;
  EXPECT_EQ(LimitWorkersKv(flags, Demand(0, 1000)).status().message(),
            "--max-model-len 1001 is more than the model's maximum; lower it to 1000");
}

TEST(EngineFlags, ContradictionsAreRefused) {
  EngineFlags flags;
  EXPECT_TRUE(ValidateEngineFlags(flags).ok());
  flags.preemption = sched::PreemptionMode::kSwap;
  EXPECT_NE(ValidateEngineFlags(flags).message().find("--swap-space"), std::string::npos);
  flags = {};
  flags.preemption = sched::PreemptionMode::kRecompute;
  EXPECT_TRUE(ValidateEngineFlags(flags).ok());
  flags.swap_gib = 1;
  EXPECT_NE(ValidateEngineFlags(flags).message().find("--swap-space"), std::string::npos);
  flags = {};
  flags.max_num_seqs = 4096;
  EXPECT_NE(ValidateEngineFlags(flags).message().find("--max-num-batched-tokens"),
            std::string::npos);
  flags = {};
  flags.num_blocks = 1;
  flags.kv_bytes = 1;
  EXPECT_FALSE(ValidateEngineFlags(flags).ok());
}

// Decision 0022: 512 where this machine computes; a step has room for a token of each sequence.
TEST(EngineFlags, StepsAreAsLargeAsTheSequencesNeed) {
  Command command;
  EngineFlags flags;
  AddEngineOptions(command, &flags);
  EXPECT_EQ(flags.max_num_batched_tokens, 512);
  const auto set = [&](const char* option, const char* value) {
    EXPECT_TRUE(command.Named(option).set({value}).ok());
    return flags.max_num_batched_tokens;
  };
  EXPECT_EQ(set("max-num-seqs", "64"), 512);
  EXPECT_EQ(set("max-num-seqs", "1024"), 1024);
  EXPECT_EQ(set("max-num-batched-tokens", "300"), 300);
  EXPECT_EQ(set("max-num-seqs", "1024"), 300) << "what is given stays, and is refused";
  EXPECT_FALSE(ValidateEngineFlags(flags).ok());
}

}  // namespace
}  // namespace millrace::apps
