// Shared by the kernel tests: seeded numbers, host matrices of any storage type, a run per target.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/float16.h"

namespace millrace::tensor {

// A float matrix that owns its numbers; rows are `gap` apart.
struct TestRows {
  TestRows(int rows, int cols, int gap = 0)
      : stride(cols + gap), numbers(static_cast<size_t>(rows) * stride, 0.0f), shape{rows, cols} {}
  static TestRows Random(int rows, int cols, uint64_t seed, int gap = 0) {
    TestRows x(rows, cols, gap);
    Rng rng(seed);
    for (float& v : x.numbers) v = static_cast<float>(rng.Uniform() * 2 - 1);
    return x;
  }
  Rows view() { return {numbers.data(), shape[0], shape[1], stride}; }
  float* row(int r) { return numbers.data() + static_cast<size_t>(r) * stride; }
  std::vector<float> Copy(int r) const {
    const float* from = numbers.data() + static_cast<size_t>(r) * stride;
    return {from, from + shape[1]};
  }

  int stride;
  std::vector<float> numbers;
  int shape[2];
};

// A step over one pool, begun on the device; the rows of each span follow those of the span before.
class TestStep {
 public:
  TestStep(Device& device, KvPool& pool, std::span<const AttentionSpan> spans,
           int first_layer = 0) {
    for (const AttentionSpan& span : spans) {
      for (int i = 0; i < span.num_rows; ++i) positions_.push_back(span.start + i);
    }
    part_ = {&pool, first_layer, 0, static_cast<int>(positions_.size()), spans};
    device.BeginStep({.positions = positions_, .parts = {&part_, 1}});
  }
  TestStep(const TestStep&) = delete;
  RowRange all() const { return {0, part_.rows}; }

 private:
  std::vector<int32_t> positions_;
  StepPart part_;
};

// A weight in storage type.
struct TestWeight {
  TestWeight(DType dtype, int rows, int cols, uint64_t seed) : bytes(BytesOf(dtype) * rows * cols) {
    host = {bytes.data(), dtype, rows, cols};
    Rng rng(seed);
    for (size_t i = 0; i < static_cast<size_t>(rows) * cols; ++i) {
      Set(i, static_cast<float>(rng.Uniform() * 2 - 1));
    }
  }
  TestWeight(const TestWeight&) = delete;
  void Set(size_t i, float v) {
    if (host.dtype == DType::kF32) {
      std::memcpy(&bytes[4 * i], &v, 4);
    } else {
      const uint16_t h = host.dtype == DType::kBF16 ? BF16FromFloat(v) : F16FromFloat(v);
      std::memcpy(&bytes[2 * i], &h, 2);
    }
  }
  std::vector<uint8_t> bytes;
  HostMatrix host;
};

inline std::unique_ptr<Device> MakeCpu(int threads) {
  auto device = NewCpuDevice({.threads = threads, .pin_threads = false});
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(device).value();
}

template <typename T>
T Must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

enum class Weight { kLight, kHeavy };

// Runs body() once for each instruction set that was compiled and that this machine has. With
// sanitizers, which are ten times slower, heavy bodies run on the best set only.
template <typename Body>
void ForEachTarget(Body body, Weight weight = Weight::kLight) {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.back() != HWY_STATIC_TARGET) targets.push_back(HWY_STATIC_TARGET);
#if defined(MILLRACE_SANITIZED)
  if (weight == Weight::kHeavy) targets.resize(1);
#endif
  static_cast<void>(weight);
  for (int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Equal bits: NaN equals itself, 0 and -0 differ.
inline bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace millrace::tensor
