// The profile of a shape, and where it is kept.
#include "ops/profile/shape_profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "model/shapes.h"
#include "ops/profile/profile_cache.h"
#include "ops/profile/testing/tiny_config.h"

namespace millrace::ops {
namespace {

namespace fs = std::filesystem;

constexpr int kLayers = 6;

class ShapeProfile : public ::testing::Test {
 protected:
  ShapeProfile() { fs::remove_all(folder_); }
  ~ShapeProfile() override { fs::remove_all(folder_); }

  ShapeProfileOptions Options() const {
    return {.model = "tiny", .config = TinyConfig(kLayers), .scratch = folder_ + "/scratch"};
  }
  Status Refusal(const ShapeProfileOptions& options) const {
    const auto profile = MeasureShape(options, clock_);
    EXPECT_FALSE(profile.ok());
    EXPECT_FALSE(fs::exists(options.scratch)) << "the weights are removed";
    return profile.status();
  }

  const std::string folder_ = ::testing::TempDir() + "shape_profile_" + std::to_string(getpid());
  SteadyClock clock_;
};

TEST_F(ShapeProfile, OneLayerStandsForAll) {
  ShapeProfileOptions options = Options();
  fs::create_directories(options.scratch);
  ASSERT_TRUE(WriteFileAtomically(options.scratch + "/config.json", "of a killed process").ok());
  int steps = 0;
  options.may_go_on = [&] { return ++steps > 0; };
  const auto profile = MeasureShape(options, clock_);
  ASSERT_TRUE(profile.ok()) << profile.status().ToString();
  EXPECT_FALSE(fs::exists(options.scratch));
  EXPECT_GT(steps, 40);
  EXPECT_EQ(profile->model, "tiny");
  EXPECT_EQ(profile->architecture, "LlamaForCausalLM");
  EXPECT_EQ(profile->dtype, "bfloat16");
  EXPECT_EQ(profile->num_layers, kLayers);
  EXPECT_TRUE(cost::CheckPlausible(*profile).ok());
  EXPECT_GT(profile->memory_copy_bytes_per_s, 1e6);
  for (const cost::ProfileSample& sample : profile->samples) {
    EXPECT_GT(sample.layers_s, 0);
    EXPECT_GT(sample.step_s, sample.layers_s);
  }
  // The layers of six are most of a step, and a stage of one has a sixth of them.
  const cost::BatchShape prompt{
      .prefill_tokens = 128, .prefill_tokens_squared = 128 * 128, .prefill_sequences = 1};
  const double all = cost::MeasuredCost(*profile).Seconds(prompt);
  EXPECT_GT(profile->layers.model.Seconds(prompt), 0.5 * all);
  EXPECT_NEAR(cost::MeasuredCost(*profile, {0, 1}).Seconds(prompt) * kLayers,
              profile->layers.model.Seconds(prompt), 1e-9);
}

TEST_F(ShapeProfile, GivesUpWhenTheMachineHasOtherWork) {
  ShapeProfileOptions options = Options();
  int steps = 0;
  options.may_go_on = [&] { return ++steps < 5; };
  EXPECT_EQ(Refusal(options).code(), StatusCode::kCancelled);
}

TEST_F(ShapeProfile, PausesDoNotCount) {
  ShapeProfileOptions options = Options();
  options.limit = Duration::Seconds(0.5);
  int waits = 0;
  options.may_go_on = [&] {
    if (++waits == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return true;
  };
  (void)MeasureShape(options, clock_);
  EXPECT_GT(waits, 3) << "it went on after the pause";
}

TEST_F(ShapeProfile, WhatCannotBeMeasuredInTimeIsSaid) {
  ShapeProfileOptions slow = Options();
  slow.limit = Duration::Seconds(1e-6);
  EXPECT_NE(Refusal(slow).message().find("not written within 1e-06 s; measure with"),
            std::string::npos);
  ShapeProfileOptions large = Options();
  large.config = *model::ShapeConfig("gpt3-175b");  // a layer has 3.6 GB
  EXPECT_EQ(Refusal(large).code(), StatusCode::kResourceExhausted);
  ShapeProfileOptions unknown = Options();
  unknown.config["architectures"] = {"NobodyKnows"};
  EXPECT_FALSE(Refusal(unknown).message().empty());
}

TEST_F(ShapeProfile, TheCacheHasWhatWasMeasuredHere) {
  const ProfileCache cache(folder_);
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.num_layers = kLayers;
  spec.dtype = DType::kBF16;
  const ProfileSubject subject{TinyConfig(kLayers), DType::kBF16, "cpu, 2 threads", "class", 2};
  EXPECT_FALSE(cache.Load(subject.Key(), spec));
  cost::Profile profile = *MeasureShape(Options(), clock_);
  ASSERT_TRUE(cache.Store(subject.Key(), profile).ok());
  const auto kept = cache.Load(subject.Key(), spec);
  ASSERT_TRUE(kept);
  EXPECT_EQ(cost::FormatProfile(*kept), cost::FormatProfile(profile));
  // Every part of the subject counts.
  for (const ProfileSubject& other :
       {ProfileSubject{TinyConfig(5), DType::kBF16, "cpu, 2 threads", "class", 2},
        ProfileSubject{TinyConfig(kLayers), DType::kF32, "cpu, 2 threads", "class", 2},
        ProfileSubject{TinyConfig(kLayers), DType::kBF16, "another", "class", 2},
        ProfileSubject{TinyConfig(kLayers), DType::kBF16, "cpu, 2 threads", "another", 2},
        ProfileSubject{TinyConfig(kLayers), DType::kBF16, "cpu, 2 threads", "class", 1},
        ProfileSubject{TinyConfig(kLayers), DType::kBF16, "cpu, 2 threads", "class", 2, 0.5}}) {
    EXPECT_NE(other.Key(), subject.Key());
  }
  // What does not fit is not used, whatever the file's name.
  spec.num_layers = 7;
  EXPECT_FALSE(cache.Load(subject.Key(), spec));
  spec.num_layers = kLayers;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    ASSERT_TRUE(WriteFileAtomically(entry.path(), "{").ok());
  }
  EXPECT_FALSE(cache.Load(subject.Key(), spec));
}

TEST_F(ShapeProfile, OneProcessMeasuresAtATime) {
  const ProfileCache cache(folder_);
  {
    const auto lock = cache.Lock();
    ASSERT_TRUE(lock.ok()) << lock.status().ToString();
    EXPECT_EQ(cache.Lock().status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(cache.Lock().ok());
}

TEST_F(ShapeProfile, AProfileOfAnotherModelDoesNotFit) {
  cost::Profile profile;
  profile.model = "m";
  profile.architecture = "LlamaForCausalLM";
  profile.dtype = "bfloat16";
  profile.num_layers = 5;
  ModelSpec spec;
  spec.architecture = profile.architecture;
  spec.num_layers = 6;
  spec.dtype = DType::kBF16;
  EXPECT_EQ(CheckProfile(profile, spec).message(),
            "it is of m (LlamaForCausalLM, 5 layers, bfloat16), but the model is LlamaForCausalLM "
            "with 6 layers in bfloat16");
  spec.num_layers = 5;
  EXPECT_NE(CheckProfile(profile, spec).message().find("cannot be of a real machine"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::ops
