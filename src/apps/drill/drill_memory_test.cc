#include "apps/drill/drill_memory.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

plan::ModelFootprint SmallModel() {
  plan::ModelFootprint model;
  model.spec.num_layers = 4;
  model.spec.num_kv_heads = 4;
  model.spec.head_dim = 32;
  model.spec.dtype = DType::kBF16;
  model.spec.max_position = 1024;
  model.spec.weight_bytes = 8 << 20;
  return model;
}

TEST(DrillMemory, EveryProcessHasRoomForAllStreams) {
  const DrillOptions options{.streams = 8, .tokens = 400};
  const auto kv_bytes = CheckDrillFits(options, SmallModel(), {int64_t{16} << 30, "test"});
  ASSERT_TRUE(kv_bytes.ok());
  EXPECT_GE(*kv_bytes, 8 * (400 + 64) * SmallModel().spec.KvBytesPerToken());
}

TEST(DrillMemory, TooLittleIsRefusedWithTheNumbers) {
  const auto refused =
      CheckDrillFits({}, SmallModel(), {int64_t{100} << 20, "control group limit"});
  ASSERT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("100 MiB is free (control group limit)"),
            std::string::npos)
      << refused.status().message();
}

TEST(DrillMemory, AnswersFitIntoTheContext) {
  const MemoryAvailable plenty{int64_t{16} << 30, "test"};
  EXPECT_TRUE(CheckDrillFits({.tokens = 960}, SmallModel(), plenty).ok());
  const auto refused = CheckDrillFits({.tokens = 961}, SmallModel(), plenty);
  EXPECT_EQ(refused.status().message(),
            "--tokens 961 and a prompt of up to 64 exceed the model's context of 1024: give at "
            "most 960");
}

}  // namespace
}  // namespace millrace::apps
