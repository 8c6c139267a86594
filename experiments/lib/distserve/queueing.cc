#include "experiments/lib/distserve/queueing.h"

#include "base/check.h"

namespace millrace::experiments::distserve {
namespace {

// Mean wait of an M/D/1 queue.
std::optional<double> Wait(double requests_per_s, double seconds) {
  const double load = requests_per_s * seconds;
  if (!(load < 1)) return std::nullopt;
  return requests_per_s * seconds * seconds / (2 * (1 - load));
}

}  // namespace

std::optional<double> Md1MeanTtft(const Md1Load& load) {
  const auto wait = Wait(load.requests_per_s, load.seconds);
  if (!wait) return std::nullopt;
  return load.seconds + *wait;
}

std::optional<double> Md1InterOpTtft(const Md1Load& load, int degree) {
  MR_CHECK(degree >= 1) << degree;
  // The slowest stage limits the rate; a request still passes all stages.
  const auto wait = Wait(load.requests_per_s, load.seconds / degree);
  if (!wait) return std::nullopt;
  return load.seconds + *wait;
}

std::optional<double> Md1IntraOpTtft(const Md1Load& load, double speedup) {
  MR_CHECK(speedup > 0) << speedup;
  return Md1MeanTtft({load.requests_per_s, load.seconds / speedup});
}

std::optional<double> Md1ReplicatedTtft(const Md1Load& load, int replicas) {
  MR_CHECK(replicas >= 1) << replicas;
  return Md1MeanTtft({load.requests_per_s / replicas, load.seconds});
}

std::optional<double> InterOpCrossover(double speedup) {
  MR_CHECK(speedup > 1 && speedup <= 2) << speedup;
  constexpr double kLoadMax = 2;  // two devices
  constexpr int kHalvings = 60;
  // In units of D: pipeline minus split; negative if the pipeline is faster.
  const auto pipeline_wins = [&](double load) {
    const auto inter = Md1InterOpTtft({load, 1}, 2);
    const auto intra = Md1IntraOpTtft({load, 1}, speedup);
    return inter && (!intra || *inter < *intra);
  };
  double low = 0, high = kLoadMax * (1 - 1e-12);
  if (!pipeline_wins(high)) return std::nullopt;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (pipeline_wins(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace millrace::experiments::distserve
