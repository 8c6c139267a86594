#include "net/collective/pairwise_sum.h"

#include <cstring>

#include "base/check.h"

namespace millrace::net {
namespace {

// Values per run. A run goes through a buffer, so that the compiler sees that nothing overlaps.
constexpr size_t kRun = 256;

template <size_t N>
void SumRun(const float* const* parts, size_t first, size_t count, float* __restrict out) {
  if constexpr (N == 1) {
    std::memcpy(out, parts[0] + first, count * sizeof(float));
  } else if constexpr (N == 2) {
    const float* __restrict a = parts[0] + first, * __restrict b = parts[1] + first;
    for (size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
  } else {
    float right[kRun];
    SumRun<N / 2>(parts, first, count, out);
    SumRun<N / 2>(parts + N / 2, first, count, right);
    for (size_t i = 0; i < count; ++i) out[i] += right[i];
  }
}

template <size_t N>
void Sum(const float* const* parts, size_t count, float* out) {
  float run[kRun];
  for (size_t first = 0; first < count; first += kRun) {
    const size_t n = count - first < kRun ? count - first : kRun;
    SumRun<N>(parts, first, n, run);
    std::memcpy(out + first, run, n * sizeof(float));
  }
}

}  // namespace

void PairwiseSum(std::span<const float* const> parts, size_t count, float* out) {
  switch (parts.size()) {
    case 1: return Sum<1>(parts.data(), count, out);
    case 2: return Sum<2>(parts.data(), count, out);
    case 4: return Sum<4>(parts.data(), count, out);
    case 8: return Sum<8>(parts.data(), count, out);
    default: MR_CHECK(false) << parts.size() << " parts";
  }
}

}  // namespace millrace::net
