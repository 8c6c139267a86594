#include "plan/spot/optimizer.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace millrace::plan::spot {
namespace {

Candidate WithPipelines(Candidate candidate, int data) {
  candidate.config.data = data;
  candidate.throughput_per_s = Throughput(candidate.config, candidate.execution_ms);
  return candidate;
}

// The fewest pipelines that carry `load`, at most `data_max`.
int PipelinesFor(const Candidate& one, double load, int data_max) {
  const double needed = std::ceil(load / one.throughput_per_s * (1 - 1e-12));
  int data = static_cast<int>(std::clamp<double>(needed, 1, data_max));
  while (data < data_max && WithPipelines(one, data).throughput_per_s < load) ++data;
  return data;
}

}  // namespace

int Instances(const ParallelConfig& config, int devices_per_instance) {
  return (config.devices() + devices_per_instance - 1) / devices_per_instance;
}

std::vector<Candidate> Pipelines(const Profile& profile, const SearchSpace& space, int devices) {
  std::vector<Candidate> found;
  ParallelConfig c;
  c.data = 1;
  for (c.tensor = 1; c.tensor <= std::min(profile.tensor_max, devices); c.tensor *= 2) {
    const int stages_min = std::max(1, (space.devices_min + c.tensor - 1) / c.tensor);
    for (c.batch = 1; c.batch <= space.batch_max; c.batch *= 2) {
      for (c.prefill_micro_batches = 1; c.prefill_micro_batches <= c.batch;
           c.prefill_micro_batches *= 2) {
        for (c.decode_micro_batches = 1; c.decode_micro_batches <= c.batch;
             c.decode_micro_batches *= 2) {
          for (c.pipeline = stages_min; c.pipeline * c.tensor <= devices; ++c.pipeline) {
            if (c.pipeline > profile.padded_layers) break;
            if (profile.padded_layers % c.pipeline != 0) continue;
            const auto time = Execution(profile, c);
            if (!time.has_value()) continue;
            const double ms = time->Total(space.output_tokens);
            found.push_back({c, ms, Throughput(c, ms), false});
          }
        }
      }
    }
  }
  return found;
}

std::optional<Candidate> OptimizeAsPublished(const Profile& profile, const SearchSpace& space,
                                             int devices, double requests_per_s) {
  std::optional<Candidate> best, fallback;
  for (const Candidate& one : Pipelines(profile, space, devices)) {
    const Candidate c = WithPipelines(one, devices / (one.config.pipeline * one.config.tensor));
    if (c.throughput_per_s >= requests_per_s &&
        (!best.has_value() || c.execution_ms < best->execution_ms)) {
      best = c;
    }
    if (!fallback.has_value() || c.throughput_per_s > fallback->throughput_per_s) fallback = c;
  }
  if (!best.has_value()) return fallback;
  best->carries_load = true;
  return best;
}

std::optional<Candidate> Optimize(const Profile& profile, const SearchSpace& space, int devices_max,
                                  double requests_per_s, const OptimizeOptions& options) {
  const double load = requests_per_s * options.headroom;
  std::vector<Candidate> carry, rest;
  for (const Candidate& one : Pipelines(profile, space, devices_max)) {
    const int data_max = devices_max / (one.config.pipeline * one.config.tensor);
    Candidate c = WithPipelines(one, PipelinesFor(one, load, data_max));
    c.carries_load = c.throughput_per_s >= load;
    (c.carries_load ? carry : rest).push_back(c);
  }
  const auto cost = [&](const Candidate& c) {
    return std::tuple(Instances(c.config, space.devices_per_instance), c.execution_ms,
                      -c.throughput_per_s, c.config);
  };
  const auto cheaper = [&](const Candidate& a, const Candidate& b) { return cost(a) < cost(b); };
  if (!carry.empty()) {
    double best_ms = carry.front().execution_ms;
    for (const Candidate& c : carry) best_ms = std::min(best_ms, c.execution_ms);
    std::erase_if(carry, [&](const Candidate& c) {
      return c.execution_ms > best_ms * (1 + options.tie_band);
    });
    return *std::min_element(carry.begin(), carry.end(), cheaper);
  }
  if (rest.empty()) return std::nullopt;
  double most = 0;
  for (const Candidate& c : rest) most = std::max(most, c.throughput_per_s);
  std::erase_if(
      rest, [&](const Candidate& c) { return c.throughput_per_s < most * (1 - options.tie_band); });
  return *std::min_element(rest.begin(), rest.end(), cheaper);
}

FleetChange AdjustFleet(const Fleet& fleet, int instances_needed) {
  FleetChange change;
  const int missing = instances_needed - fleet.spot - fleet.on_demand;
  if (missing > 0) {
    change.ask_spot = std::min(missing, std::max(0, fleet.spot_max - fleet.spot));
    change.ask_on_demand = std::min(missing, std::max(0, fleet.on_demand_max - fleet.on_demand));
    return change;
  }
  // Spare spot machines are kept as a pool: the next notice then costs no launch.
  const int surplus = -missing;
  change.free_on_demand = std::min(surplus, fleet.on_demand);
  change.free_spot = std::max(0, surplus - change.free_on_demand - fleet.spares);
  return change;
}

}  // namespace millrace::plan::spot
