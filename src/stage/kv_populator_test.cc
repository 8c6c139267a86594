#include "stage/kv_populator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/rng.h"

namespace millrace::stage {
namespace {

constexpr size_t kPlenty = size_t{1} << 40;

tensor::KvShape Shape(int layers, int blocks) {
  return {.num_layers = layers, .num_kv_heads = 2, .head_dim = 64, .num_blocks = blocks};
}

size_t BlockBytes(const tensor::KvShape& shape) {  // of all layers
  return tensor::PoolKvBox{0, shape.num_layers, 0, shape.num_kv_heads, 0, shape.block_size}.Bytes(
      shape);
}

// What was populated, by layer.
using Ready = std::map<int, std::set<BlockIndex>>;

BlockIndex Take(PoolGrowth& growth, BlockIndex used, Ready& ready) {
  while (const auto step = growth.Next(used)) {
    for (BlockIndex block = step->first; block < step->end; ++block) {
      EXPECT_TRUE(ready[step->layer].insert(block).second) << "block " << block << " came twice";
    }
    growth.Done(*step);
  }
  return ready.empty() ? 0 : static_cast<BlockIndex>(ready.begin()->second.size());
}

TEST(PoolGrowth, KeepsSoManyBlocksReadyInAllLayers) {
  const tensor::KvShape shape = Shape(3, 10'000);
  PoolGrowth growth(shape, 100 * BlockBytes(shape));
  Ready ready;
  BlockIndex before = 0;
  for (const BlockIndex used : {0, 1, 50, 700, 701, 9'950, 10'000}) {
    const BlockIndex count = Take(growth, used, ready);
    EXPECT_GE(count, std::min(used + 100, 10'000));
    EXPECT_GE(count, before);
    before = count;
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_EQ(ready[layer].size(), static_cast<size_t>(count)) << "layer " << layer;
      EXPECT_EQ(*ready[layer].rbegin(), count - 1) << "blocks are left out";
    }
  }
  EXPECT_EQ(before, 10'000);
}

TEST(PoolGrowth, AStepIsAboutAHugePage) {
  const PoolGrowth growth(Shape(3, 10'000), kPlenty);
  EXPECT_LE(growth.BytesOf(*growth.Next(0)), PoolGrowth::kStepBytes);
  EXPECT_GT(growth.BytesOf(*growth.Next(0)), PoolGrowth::kStepBytes / 2);
  // A block that is larger is one step.
  tensor::KvShape large = Shape(1, 10);
  large.num_kv_heads = 1024;
  large.block_size = 256;
  const PoolGrowth of_large(large, kPlenty);
  EXPECT_EQ(of_large.BytesOf(*of_large.Next(0)), BlockBytes(large));
}

TEST(PoolGrowth, AsksAgainOnlyWhenAnEighthIsUsedUp) {
  const tensor::KvShape shape = Shape(2, 10'000);
  PoolGrowth growth(shape, 800 * BlockBytes(shape));
  Ready ready;
  const BlockIndex count = Take(growth, 0, ready);
  EXPECT_EQ(growth.NextUse(), count - 800 + 100);
  Take(growth, 10'000, ready);
  EXPECT_GT(growth.NextUse(), 10'000) << "all is ready";
}

class FakePool : public tensor::KvPool {
 public:
  explicit FakePool(const tensor::KvShape& shape) : shape_(shape) {}
  const tensor::KvShape& shape() const override { return shape_; }
  void ReturnMemory(std::span<const BlockIndex>) override {}
  Status Populate(int layer, BlockIndex first, BlockIndex end) override {
    const MutexLock lock(mutex_);
    if (!status.ok()) return status;
    for (BlockIndex block = first; block < end; ++block) ready_[layer].insert(block);
    return OkStatus();
  }
  size_t ready(int layer) {
    const MutexLock lock(mutex_);
    return ready_[layer].size();
  }

  Status status;

 private:
  const tensor::KvShape shape_;
  Mutex mutex_;
  Ready ready_ MR_GUARDED_BY(mutex_);
};

bool Soon(const std::function<bool()>& done) {
  for (int i = 0; i < 5'000 && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return done();
}

void AWhile() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

MemoryAvailable Free(int64_t bytes) { return {bytes, "test"}; }

class KvPopulatorTest : public testing::Test {
 protected:
  const tensor::KvShape shape_ = Shape(2, 4'000);
  const std::shared_ptr<FakePool> pool_ = std::make_shared<FakePool>(shape_);
};

TEST_F(KvPopulatorTest, StaysAheadOfWhatIsUsed) {
  KvPopulator populator(1'000 * BlockBytes(shape_), [] { return Free(int64_t{1} << 40); });
  const auto user = populator.Add(pool_);
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) >= 1'000; }));
  EXPECT_LT(pool_->ready(1), 2'000u) << "more than was asked for";
  user->Uses(1'499);
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) >= 2'500; }));
  user->Uses(3'999);
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) == 4'000; }));
  EXPECT_TRUE(Soon([&] { return populator.populated_bytes() == 4'000 * BlockBytes(shape_); }));
}

TEST_F(KvPopulatorTest, WaitsWhileThePoolIsUsed) {
  KvPopulator populator(kPlenty, [] { return Free(int64_t{1} << 40); });
  {
    const KvPopulator::Use use(&populator);
    populator.Add(pool_);
    AWhile();
    EXPECT_EQ(pool_->ready(0), 0u);
  }
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) == 4'000; }));
}

TEST_F(KvPopulatorTest, LeavesATenthOfTheFreeMemory) {
  std::atomic<int64_t> free = 1'000'000'000;
  KvPopulator populator(kPlenty, [&] { return Free(free); });
  free = 100'000'000 + 1'000'000;  // less than a step is left beside the tenth
  populator.Add(pool_);
  AWhile();
  EXPECT_EQ(pool_->ready(0), 0u);
  free = 1'000'000'000;  // others gave theirs back
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) == 4'000; }));
}

TEST_F(KvPopulatorTest, ForgetsAPoolThatIsGone) {
  KvPopulator populator(kPlenty, [] { return Free(int64_t{1} << 40); });
  std::shared_ptr<KvPopulator::Pool> user;
  {
    const KvPopulator::Use use(&populator);
    const auto closed = std::make_shared<FakePool>(shape_);
    user = populator.Add(closed);
  }
  user->Uses(17);
  populator.Add(pool_);
  EXPECT_TRUE(Soon([&] { return pool_->ready(1) == 4'000; }));
  EXPECT_TRUE(Soon([&] { return populator.populated_bytes() == 4'000 * BlockBytes(shape_); }));
}

TEST_F(KvPopulatorTest, GivesUpWhereTheSystemCannot) {
  KvPopulator populator(kPlenty, [] { return Free(int64_t{1} << 40); });
  pool_->status = Unimplemented("the kernel is older than 5.14");
  const auto user = populator.Add(pool_);
  user->Uses(3'999);
  AWhile();
  EXPECT_EQ(populator.populated_bytes(), 0u);
}

TEST_F(KvPopulatorTest, EndsWhileThereIsMuchToDo) {
  for (int i = 0; i < 20; ++i) {
    KvPopulator populator(kPlenty, [] { return Free(int64_t{1} << 40); });
    populator.Add(std::make_shared<FakePool>(Shape(8, 1 << 20)));
    populator.Add(pool_);
  }
}

}  // namespace
}  // namespace millrace::stage
