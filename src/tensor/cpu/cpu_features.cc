#include "tensor/cpu/cpu_features.h"

#include <fmt/format.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cctype>

namespace millrace::tensor {
namespace {

constexpr char kDefinition[] = "cpu-bits-1";

struct Features {
  const char* name;
  int64_t target;
};
// All of them fuse a product and a sum, and compute the same bits.
constexpr Features kX86[] = {{"avx512", HWY_AVX3}, {"avx2", HWY_AVX2}};

// Of the targets that were compiled and that the processor has, the best: the lowest bit.
int64_t BestTarget() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets & -targets;
}

}  // namespace

std::string CpuFeatures() {
  const int64_t best = BestTarget();
  for (const auto& [name, target] : kX86) {
    if (target == best) return name;
  }
  std::string name = hwy::TargetName(best);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return std::tolower(c); });
  return name;
}

std::string CpuName(int threads) { return fmt::format("cpu {} x{}", CpuFeatures(), threads); }

Status LimitCpuFeatures(std::string_view features) {
  const auto* wanted =
      std::ranges::find_if(kX86, [&](const Features& known) { return features == known.name; });
  if (wanted == std::end(kX86)) {
    return InvalidArgument(fmt::format("must be avx2 or avx512, got '{}'", features));
  }
  if ((hwy::SupportedTargets() & HWY_TARGETS & wanted->target) == 0) {
    return InvalidArgument(
        fmt::format("this processor has no {}; its best is {}", features, CpuFeatures()));
  }
  hwy::DisableTargets(wanted->target - 1);  // the better ones
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return OkStatus();
}

std::string CpuNumericClass() {
  const int64_t best = BestTarget();
  const bool fuses =
      std::ranges::any_of(kX86, [&](const Features& known) { return known.target == best; });
  return fuses ? kDefinition : fmt::format("{}-{}", kDefinition, CpuFeatures());
}

}  // namespace millrace::tensor
