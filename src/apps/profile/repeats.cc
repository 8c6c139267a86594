#include "apps/profile/repeats.h"

#include <algorithm>
#include <utility>

#include "apps/bench/statistics.h"

namespace millrace::apps {

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

}  // namespace millrace::apps
