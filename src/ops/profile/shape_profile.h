// MeasureShape: the step times of a model's shape on this machine in a few seconds, without its
// weights: one layer and the head with random weights are measured, and the layer is scaled to the
// number of layers. Of a small model more layers are measured, since one would stay in the caches.
// `millrace profile` measures the whole model, and what a server adds; this has neither front end
// nor pace.
//
// Any thread, which blocks; it computes on that thread and on a device of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/profile.h"

namespace millrace::ops {

struct ShapeProfileOptions {
  // The measured layers have at least this, as far as the model has.
  static constexpr int64_t kLayersBytesMin = int64_t{64} << 20;
  // Of the layers and the head in memory; more could not be written and measured within the limit.
  static constexpr int64_t kWeightBytesMax = int64_t{3} << 30;

  std::string model;           // its name, for the profile
  Json config;                 // its config.json
  DType dtype = DType::kBF16;  // of its weights
  std::string scratch;  // a folder for the random weights; removed at the beginning and the end
  int threads = 1;
  // For the weights and again for the steps, without the time in `may_go_on`.
  Duration limit = Duration::Seconds(15);
  // Called before each step; it waits while the machine has other work. False: give up.
  std::function<bool()> may_go_on = [] { return true; };
};

// kCancelled: may_go_on said so. kResourceExhausted: too large for the memory, or too slow for the
// limit.
Result<cost::Profile> MeasureShape(const ShapeProfileOptions& options, const Clock& clock);

}  // namespace millrace::ops
