#include "cost/memory_model.h"

#include <algorithm>
#include <cmath>

namespace millrace::cost {
namespace {

int64_t LayerParameters(const ModelSpec& spec, int feed_forward_matrices) {
  const int64_t attention_width = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.num_kv_heads} * spec.head_dim;
  return int64_t{spec.hidden_size} * (2 * attention_width + 2 * kv_width) +
         int64_t{feed_forward_matrices} * spec.hidden_size * spec.intermediate_size;
}

bool HasPlainFeedForward(const ModelSpec& spec) {
  return spec.architecture.starts_with("OPT") || spec.architecture.starts_with("GPT") ||
         spec.architecture.starts_with("Bloom");
}

}  // namespace

ParameterCount CountParameters(const ModelSpec& spec) {
  const int64_t table = int64_t{spec.vocab_size} * spec.hidden_size;
  const ParameterCount by_name{LayerParameters(spec, HasPlainFeedForward(spec) ? 2 : 3), table,
                               table};
  if (spec.num_parameters <= 0) return by_name;
  ParameterCount best = by_name;
  int64_t least = INT64_MAX;
  for (const int matrices : {2, 3}) {
    for (const int64_t head : {table, int64_t{0}}) {
      const ParameterCount count{LayerParameters(spec, matrices), table, head};
      const int64_t total = count.layer * spec.num_layers + count.embedding + count.head;
      const int64_t off = std::abs(total - spec.num_parameters);
      if (off < least) {
        least = off;
        best = count;
      }
    }
  }
  return best;
}

int64_t StageWeightBytes(const ModelSpec& spec, LayerRange layers) {
  const ParameterCount count = CountParameters(spec);
  int64_t parameters = count.layer * layers.size();
  const bool first = layers.begin == 0, last = layers.end == spec.num_layers;
  if (first) parameters += count.embedding;
  // A tied head on another stage needs a second copy of the table.
  if (last) parameters += count.head > 0 || first ? count.head : count.embedding;
  return parameters * static_cast<int64_t>(BytesOf(spec.dtype));
}

int64_t ActivationBytesPerToken(const ModelSpec& spec) {
  return int64_t{spec.hidden_size} * static_cast<int64_t>(BytesOf(spec.dtype));
}

int64_t WorkspaceBytes(const ModelSpec& spec, int64_t tokens) {
  const int64_t qkv = (int64_t{spec.num_heads} + 2 * int64_t{spec.num_kv_heads}) * spec.head_dim;
  const int64_t widest = std::max<int64_t>(qkv, int64_t{2} * spec.intermediate_size);
  return tokens * (widest + 2 * int64_t{spec.hidden_size}) * 4;
}

int64_t KvCapacityTokens(const ModelSpec& spec, LayerRange layers, int64_t memory_bytes,
                         int64_t step_tokens, double usable) {
  const auto budget = static_cast<int64_t>(static_cast<double>(memory_bytes) * usable);
  const int64_t left = budget - StageWeightBytes(spec, layers) - WorkspaceBytes(spec, step_tokens);
  const int64_t each = spec.KvBytesPerToken(layers.size());
  return left <= 0 || each <= 0 ? 0 : left / each;
}

}  // namespace millrace::cost
