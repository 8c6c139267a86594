#include "stage/pooler.h"

#include <cmath>
#include <cstddef>

namespace millrace::stage {

void Pooler::Add(int position, std::span<const float> state) {
  if (pooling_ == Pooling::kLast) {
    sum_.assign(state.begin(), state.end());
    added_ = 1;
    return;
  }
  gap_ = gap_ || position != added_;
  sum_.resize(state.size());
  for (size_t i = 0; i < state.size(); ++i) sum_[i] += static_cast<double>(state[i]);
  ++added_;
}

Result<std::vector<float>> Pooler::Vector(int prompt_tokens) const {
  const int needed = pooling_ == Pooling::kMean ? prompt_tokens : 1;
  if (gap_ || added_ != needed) return Internal("the states of some of the prompt are missing");
  std::vector<float> vector;
  vector.reserve(sum_.size());
  for (const double sum : sum_) {
    vector.push_back(static_cast<float>(sum / added_));
    if (!std::isfinite(vector.back())) return Internal("the model's output is not a number");
  }
  return vector;
}

}  // namespace millrace::stage
