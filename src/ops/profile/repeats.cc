#include "ops/profile/repeats.h"

#include <algorithm>
#include <utility>

#include "base/statistics.h"

namespace millrace::ops {

StepRig::Timing Summarise(std::vector<StepRig::Timing> repeats) {
  MR_CHECK(!repeats.empty());
  std::sort(repeats.begin(), repeats.end(), [](const StepRig::Timing& a, const StepRig::Timing& b) {
    return a.undisturbed > b.undisturbed;
  });
  repeats.resize((repeats.size() + 1) / 2);
  std::vector<double> step, layers, undisturbed;
  for (const StepRig::Timing& timing : repeats) {
    step.push_back(timing.step_s);
    layers.push_back(timing.layers_s);
    undisturbed.push_back(timing.undisturbed);
  }
  return {Median(std::move(step)), Median(std::move(layers)), Median(std::move(undisturbed))};
}

std::vector<StepRig::Timing> InTheLongRun(
    const std::vector<std::vector<StepRig::Timing>>& batches) {
  std::vector<StepRig::Timing> out;
  double taken_s = 0, own_s = 0;
  for (const std::vector<StepRig::Timing>& repeats : batches) {
    std::vector<double> own;
    for (const StepRig::Timing& timing : repeats) {
      own.push_back(timing.step_s * timing.undisturbed);
      taken_s += timing.step_s;
      own_s += own.back();
    }
    const StepRig::Timing typical = Summarise(repeats);
    const double step_s = Median(std::move(own));
    out.push_back({step_s, step_s * typical.layers_s / typical.step_s, typical.undisturbed});
  }
  const double stretch = own_s > 0 ? std::max(1.0, taken_s / own_s) : 1;
  for (StepRig::Timing& timing : out) {
    timing.step_s *= stretch;
    timing.layers_s *= stretch;
  }
  return out;
}

}  // namespace millrace::ops
