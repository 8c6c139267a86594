#include "tensor/cpu/cpu_features.h"

#include <fmt/format.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cctype>

#include "tensor/cpu/amx.h"

namespace millrace::tensor {
namespace {

constexpr char kDefinition[] = "cpu-bits-3";

struct Features {
  const char* name;
  int64_t target;
};
// All of them fuse a product and a sum, and compute the same bits. "amx" is AVX-512 with tiles.
constexpr Features kX86[] = {{"amx", HWY_AVX3}, {"avx512", HWY_AVX3}, {"avx2", HWY_AVX2}};

std::atomic<int> activation_limbs{1};
std::atomic<bool> may_use_amx{true};

// Of the targets that were compiled and that the processor has, the best: the lowest bit.
int64_t BestTarget() {
  const int64_t supported = hwy::SupportedTargets();
  // Asking makes Highway choose from all that the processor has, whatever the limit.
  hwy::GetChosenTarget().Update(supported);
  const int64_t targets = supported & HWY_TARGETS;
  return targets & -targets;
}

}  // namespace

bool CpuUsesAmx() { return may_use_amx && BestTarget() == HWY_AVX3 && AmxIsThere(); }

std::string CpuFeatures() {
  if (CpuUsesAmx()) return "amx";
  const int64_t best = BestTarget();
  for (const auto& [name, target] : kX86) {
    if (target == best && std::string_view(name) != "amx") return name;
  }
  std::string name = hwy::TargetName(best);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return std::tolower(c); });
  return name;
}

std::string CpuName(int threads) {
  return fmt::format("cpu {}{} x{}", CpuFeatures(), CpuActivationLimbs() == 2 ? " bf16x2" : "",
                     threads);
}

Status SetCpuActivations(std::string_view name) {
  if (name != "bf16" && name != "bf16x2") {
    return InvalidArgument(fmt::format("must be bf16 or bf16x2, got '{}'", name));
  }
  activation_limbs = name == "bf16" ? 1 : 2;
  return OkStatus();
}

int CpuActivationLimbs() { return activation_limbs; }

Status LimitCpuFeatures(std::string_view features) {
  const auto* wanted =
      std::ranges::find_if(kX86, [&](const Features& known) { return features == known.name; });
  if (wanted == std::end(kX86)) {
    return InvalidArgument(fmt::format("must be avx2, avx512 or amx, got '{}'", features));
  }
  if ((hwy::SupportedTargets() & HWY_TARGETS & wanted->target) == 0 ||
      (features == "amx" && !AmxIsThere())) {
    return InvalidArgument(
        fmt::format("this processor has no {}; its best is {}", features, CpuFeatures()));
  }
  may_use_amx = features == "amx";
  hwy::DisableTargets(wanted->target - 1);  // the better ones
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return OkStatus();
}

std::string CpuNumericClass() {
  const int64_t best = BestTarget();
  const bool fuses =
      std::ranges::any_of(kX86, [&](const Features& known) { return known.target == best; });
  return fmt::format("{}{}{}", kDefinition, CpuActivationLimbs() == 2 ? "-bf16x2" : "",
                     fuses ? "" : "-" + CpuFeatures());
}

}  // namespace millrace::tensor
