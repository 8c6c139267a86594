#include "apps/cluster/host_layout.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

constexpr int64_t kOneGib = int64_t{1} << 30;

ModelSpec Llama1b() {
  ModelSpec spec;
  spec.num_layers = 16;
  spec.hidden_size = 2048;
  spec.intermediate_size = 8192;
  spec.num_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = 64;
  spec.vocab_size = 128256;
  spec.dtype = DType::kBF16;
  spec.max_position = 8192;
  return spec;
}

HostLayoutNeed Need(int workers, double free_gib, double kv_gib) {
  return {.spec = Llama1b(),
          .workers = workers,
          .max_model_len = 8192,
          .free_bytes = static_cast<int64_t>(free_gib * kOneGib),
          .kv_bytes = static_cast<int64_t>(kv_gib * kOneGib)};
}

TEST(HostLayout, CopiesAreFirst) {
  const HostLayout layout = FastestOnOneHost(Need(2, 16, 4));
  EXPECT_EQ(layout.shape, cluster::LayoutShape{.replicas = 2});
  EXPECT_NE(layout.why.find("each of 2 workers has a copy"), std::string::npos) << layout.why;
}

TEST(HostLayout, CopiesMustFitWithTheirKv) {
  const HostLayout layout = FastestOnOneHost(Need(2, 6, 2));
  EXPECT_EQ(layout.shape, cluster::LayoutShape{.tensor_parallel = 2});
  EXPECT_NE(layout.why.find("do not fit"), std::string::npos) << layout.why;
  // They fit, and half of the KV is less than the longest sequence has.
  EXPECT_EQ(FastestOnOneHost(Need(2, 16, 0.4)).shape, cluster::LayoutShape{.tensor_parallel = 2});
}

TEST(HostLayout, APipelineIsLast) {
  const HostLayout layout = FastestOnOneHost(Need(3, 6, 2));  // 3 ranks share no 32 heads
  EXPECT_EQ(layout.shape, cluster::LayoutShape{.stages = 3});
  EXPECT_NE(layout.why.find("stages of a pipeline"), std::string::npos) << layout.why;
}

TEST(HostLayout, OneWorkerHasAll) {
  EXPECT_EQ(FastestOnOneHost(Need(1, 1, 1)).shape, cluster::LayoutShape());
}

}  // namespace
}  // namespace millrace::apps
