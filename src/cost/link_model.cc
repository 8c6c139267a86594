#include "cost/link_model.h"

#include <fmt/format.h>

#include <vector>

namespace millrace::cost {

double AllReduceSeconds(const LinkTime& link, int devices, double bytes) {
  if (devices <= 1) return 0;
  const double rounds = 2.0 * (devices - 1);
  return rounds * link.Seconds(bytes / devices);
}

Result<LinkFit> FitLink(std::span<const TransferSample> samples) {
  std::vector<std::vector<double>> rows;
  std::vector<double> measured;
  bool two_sizes = false;
  for (const TransferSample& sample : samples) {
    rows.push_back({1, sample.bytes});
    measured.push_back(sample.seconds);
    two_sizes = two_sizes || sample.bytes != samples.front().bytes;
  }
  MR_ASSIGN_OR_RETURN(const Fit fit, FitRelative(rows, measured));
  if (!two_sizes || fit.coefficients[1] * kBytesPerSecondMax < 1) {
    return InvalidArgument(fmt::format(
        "{} transfers show no bandwidth: measure sizes far enough apart, on a quiet machine",
        samples.size()));
  }
  return LinkFit{{fit.coefficients[0], 1 / fit.coefficients[1]}, fit.errors};
}

PreemptionPrice PriceOfPreemption(const StepCost& cost, const LinkTime& host_link,
                                  int64_t kv_bytes_per_token, int64_t tokens) {
  PreemptionPrice price;
  price.swap_s = 2 * host_link.Seconds(static_cast<double>(kv_bytes_per_token * tokens));
  price.recompute_s = cost.Seconds({.prefill_tokens = tokens,
                                    .prefill_tokens_squared = tokens * tokens,
                                    .prefill_sequences = 1});
  return price;
}

}  // namespace millrace::cost
