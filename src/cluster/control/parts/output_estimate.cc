#include "cluster/control/parts/output_estimate.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::cluster {
namespace {

int64_t QuantileOf(std::vector<int64_t>& values) {
  const auto rank =
      static_cast<ptrdiff_t>(OutputEstimate::kQuantile * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

}  // namespace

void OutputEstimate::Ended(int64_t tokens) {
  if (answers_.size() < kAnswersKept) {
    answers_.push_back(tokens);
  } else {
    answers_[std::exchange(next_, (next_ + 1) % kAnswersKept)] = tokens;
  }
  stale_ = true;
}

int64_t OutputEstimate::For(int64_t limit, int64_t so_far) const {
  if (so_far <= 0) {
    if (stale_ && answers_.size() >= kAnswersNeeded) {
      longer_ = answers_;
      of_new_ = QuantileOf(longer_);
      stale_ = false;
    }
    return std::clamp<int64_t>(of_new_, 1, limit);
  }
  longer_.clear();
  std::ranges::copy_if(answers_, std::back_inserter(longer_),
                       [so_far](int64_t tokens) { return tokens > so_far; });
  const bool enough = longer_.size() >= kAnswersNeeded;
  const int64_t estimate = enough ? QuantileOf(longer_) : std::max(2 * so_far, kFirstGuess);
  return std::clamp<int64_t>(estimate, 1, limit);
}

}  // namespace millrace::cluster
