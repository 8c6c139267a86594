#include "tensor/testing/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace millrace::tensor {
namespace {

const float* Head(const Rows& x, int row, int head, int head_dim) {
  return static_cast<const float*>(x.Slice(row, 1).data) + static_cast<size_t>(head) * head_dim;
}

}  // namespace

void AttendRef(Rows q, int start, Rows keys, Rows values, int head_dim, const AttentionSpec& spec,
               Rows out) {
  const int heads = q.cols / head_dim, kv_heads = keys.cols / head_dim;
  for (int r = 0; r < q.rows; ++r) {
    const int position = start + r;
    const int first = spec.window > 0 ? std::max(0, position - spec.window + 1) : 0;
    for (int h = 0; h < heads; ++h) {
      const int kv_head = h / (heads / kv_heads);
      const float* query = Head(q, r, h, head_dim);
      std::vector<double> weights;
      for (int t = first; t <= position; ++t) {
        const float* key = Head(keys, t, kv_head, head_dim);
        double score = 0;
        for (int i = 0; i < head_dim; ++i) score += double{query[i]} * key[i];
        weights.push_back(score * spec.scale);
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - max);
      std::vector<double> sums(head_dim, 0.0);
      for (int t = first; t <= position; ++t) {
        const float* value = Head(values, t, kv_head, head_dim);
        for (int i = 0; i < head_dim; ++i) sums[i] += weights[t - first] * value[i];
      }
      float* to = const_cast<float*>(Head(out, r, h, head_dim));
      for (int i = 0; i < head_dim; ++i) to[i] = static_cast<float>(sums[i] / sum);
    }
  }
}

}  // namespace millrace::tensor
