// FirstPrinciplesCost: an ESTIMATE of a stage's time from the model's shape and a device's
// published data, for hardware that was not profiled. Like the published fits, a step is a sum:
//
//   reading the weights + arithmetic of the products + attention + cache reads
//   + all-reduces of tensor parallelism + an overhead per layer
//
// The efficiencies come from DistServe's published coefficients (seven sets, A100-80GB). A test
// compares the estimate with them; the experiment vidur_roofline compares it with other
// measurements. Immutable after construction; any thread.
#pragma once

#include "core/model_spec.h"
#include "core/plan.h"
#include "cost/device_catalog.h"
#include "cost/step_cost.h"

namespace millrace::cost {

// Fractions of the published peaks.
struct Efficiency {
  // 252 of 312 TFLOP/s at OPT-13B TP 1; with TP the all-reduces are counted separately.
  double arithmetic = 0.81;
  // From the decode intercepts of one model against 1 / TP: the slope reads the weights at 0.92 to
  // 0.95 of the bandwidth, the limit is an overhead of 166 to 206 microseconds per layer.
  double weight_streaming = 0.93;
  // KV reads at 1.09 to 1.35 of 2.04 TB/s.
  double kv_reads = 0.62;
  // From c of the prefill: attention of whole prompts, causal.
  double attention = 0.14;
  // The excess of the per-token prefill coefficient over 1 / TP of itself.
  double all_reduce = 0.25;
  double layer_overhead_s = 185e-6;

  // GPUs as above. CPUs launch no kernels, so a layer costs 5 microseconds.
  static Efficiency Of(DeviceKind kind);
};

class FirstPrinciplesCost : public StepCost {
 public:
  // REQUIRES: tensor_parallel >= 1, layers within the model, the device's numbers above zero.
  FirstPrinciplesCost(const ModelSpec& spec, LayerRange layers, const DeviceSpec& device,
                      int tensor_parallel, const Efficiency& efficiency);
  FirstPrinciplesCost(const ModelSpec& spec, LayerRange layers, const DeviceSpec& device,
                      int tensor_parallel = 1)
      : FirstPrinciplesCost(spec, layers, device, tensor_parallel, Efficiency::Of(device.kind)) {}

  double Seconds(const BatchShape& batch) const override;
  static constexpr const char* kLabel = "estimate from first principles";

 private:
  double fixed_s_ = 0, per_token_s_ = 0, per_head_row_s_ = 0, per_squared_s_ = 0,
         per_context_s_ = 0;
};

}  // namespace millrace::cost
