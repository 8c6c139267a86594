#include "cost/first_principles_cost.h"

#include "cost/link_model.h"
#include "cost/memory_model.h"

namespace millrace::cost {

Efficiency Efficiency::Of(DeviceKind kind) {
  Efficiency efficiency;
  if (kind == DeviceKind::kCpu) efficiency.layer_overhead_s = 5e-6;
  return efficiency;
}

FirstPrinciplesCost::FirstPrinciplesCost(const ModelSpec& spec, LayerRange layers,
                                         const DeviceSpec& device, int tensor_parallel,
                                         const Efficiency& efficiency) {
  MR_CHECK(tensor_parallel >= 1) << tensor_parallel;
  MR_CHECK(layers.begin >= 0 && layers.begin <= layers.end && layers.end <= spec.num_layers);
  MR_CHECK(device.flops > 0 && device.memory_bytes_per_s > 0 && device.link_bytes_per_s > 0);
  const ParameterCount count = CountParameters(spec);
  const double n = layers.size(), tp = tensor_parallel;
  const double bytes = static_cast<double>(BytesOf(spec.dtype));
  const double flops = device.flops * efficiency.arithmetic * tp;
  const double stream = device.memory_bytes_per_s * efficiency.weight_streaming * tp;
  const bool last = layers.end == spec.num_layers;
  const auto layer = static_cast<double>(count.layer);
  const double head =
      last ? static_cast<double>(count.head > 0 ? count.head : count.embedding) : 0.0;

  fixed_s_ = (n * layer + head) * bytes / stream + n * efficiency.layer_overhead_s;
  per_token_s_ = 2 * n * layer / flops;
  per_head_row_s_ = 2 * head / flops;
  const double width = static_cast<double>(spec.num_heads) * spec.head_dim;
  // Scores and values, with half of them masked: 4 * width * (length^2 / 2).
  per_squared_s_ = 2 * n * width / (device.flops * efficiency.attention * tp);
  per_context_s_ = static_cast<double>(spec.KvBytesPerToken(layers.size())) /
                   (device.memory_bytes_per_s * efficiency.kv_reads * tp);
  const LinkTime link{0, device.link_bytes_per_s * efficiency.all_reduce};
  const double row = static_cast<double>(ActivationBytesPerToken(spec));
  per_token_s_ += n * 2 * AllReduceSeconds(link, tensor_parallel, row);
}

double FirstPrinciplesCost::Seconds(const BatchShape& batch) const {
  if (batch.empty()) return 0;
  return fixed_s_ + per_token_s_ * static_cast<double>(batch.tokens()) +
         per_head_row_s_ * (batch.prefill_sequences + batch.decode_sequences) +
         per_squared_s_ * static_cast<double>(batch.prefill_tokens_squared) +
         per_context_s_ * static_cast<double>(batch.decode_context);
}

}  // namespace millrace::cost
