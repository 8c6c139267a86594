#include "plan/spot/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

namespace millrace::plan::spot {
namespace {

Candidate WithPipelines(Candidate candidate, int data) {
  candidate.throughput_per_s *= static_cast<double>(data) / candidate.config.data;
  candidate.config.data = data;
  return candidate;
}

// Requests come and go one by one. Each pays its own prefill on every stage, each step at its
// lane's batch size, and, with all places taken, the prefills of the requests that arrive
// meanwhile.
std::optional<Candidate> Continuous(const Profile& profile, const ParallelConfig& c,
                                    int output_tokens) {
  const int lane = static_cast<int>(
      std::bit_ceil(static_cast<unsigned>((c.batch + c.pipeline - 1) / c.pipeline)));
  const auto &one = profile.At(c.tensor, 1), &many = profile.At(c.tensor, lane);
  if (!one.has_value() || !many.has_value()) return std::nullopt;
  const int layers = (profile.layers + c.pipeline - 1) / c.pipeline;
  const double prefill_ms = one->prefill_ms * layers;
  const double decode_ms = many->decode_ms * layers * output_tokens;
  const double hops_ms =
      (profile.stage_prefill_ms + profile.stage_decode_ms * output_tokens) * (c.pipeline - 1);
  const double ms = ((prefill_ms + decode_ms) * c.pipeline + hops_ms + c.batch * prefill_ms) *
                    profile.overhead_factor;
  return Candidate{c, ms, Throughput(c, ms), false};
}

std::optional<Candidate> Measure(const Profile& profile, const SearchSpace& space,
                                 const ParallelConfig& c) {
  if (space.batching == BatchRule::kContinuous) {
    if (c.prefill_micro_batches != 1 || c.decode_micro_batches != 1) return std::nullopt;
    return Continuous(profile, c, space.output_tokens);
  }
  const auto time = Execution(profile, c);
  if (!time.has_value()) return std::nullopt;
  const double ms = time->Total(space.output_tokens);
  return Candidate{c, ms, Throughput(c, ms), false};
}

// The fewest pipelines, at most `data_max`, that carry `load`.
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
            const auto candidate = Measure(profile, space, c);
            if (candidate.has_value()) found.push_back(*candidate);
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

double WaitingMs(const Candidate& c, double requests_per_s, double arrival_variation) {
  const double places = static_cast<double>(c.config.data) * c.config.batch;
  const double busy = requests_per_s / c.throughput_per_s;
  if (busy >= 1) return std::numeric_limits<double>::infinity();
  return c.execution_ms / places * (arrival_variation / 2) *
         std::pow(busy, std::sqrt(2 * (places + 1)) - 1) / (1 - busy);
}

namespace {

// All useful numbers of pipelines for one shape: the fewest that carry the load, more if they
// shorten a wait, or the most if none carries it.
void AddCandidates(const Candidate& one, int data_max, double requests_per_s, double load,
                   const OptimizeOptions& options, std::vector<Candidate>& carry,
                   std::vector<Candidate>& rest) {
  const int fewest = PipelinesFor(one, load, data_max);
  const int most = options.arrival_variation.has_value() ? data_max : fewest;
  for (int data = fewest; data <= most; ++data) {
    Candidate c = WithPipelines(one, data);
    c.carries_load = c.throughput_per_s >= load;
    if (c.carries_load && options.arrival_variation.has_value()) {
      c.waiting_ms = WaitingMs(c, requests_per_s, *options.arrival_variation);
      if (!std::isfinite(c.waiting_ms)) continue;
    }
    (c.carries_load ? carry : rest).push_back(c);
  }
}

// Adds pipelines on machines that are kept as spares anyway.
Candidate OnSpares(const Candidate& chosen, const SearchSpace& space, int devices_max, int spares) {
  const int instances = Instances(chosen.config, space.devices_per_instance) + spares;
  Candidate best = chosen;
  for (int data = chosen.config.data + 1;; ++data) {
    const Candidate c = WithPipelines(chosen, data);
    if (c.config.devices() > devices_max ||
        Instances(c.config, space.devices_per_instance) > instances) {
      return best;
    }
    best = c;
  }
}

}  // namespace

std::optional<Candidate> Optimize(const Profile& profile, const SearchSpace& space, int devices_max,
                                  double requests_per_s, const OptimizeOptions& options) {
  const double load = requests_per_s * options.headroom;
  std::vector<Candidate> carry, rest;
  for (const Candidate& one : Pipelines(profile, space, devices_max)) {
    const int data_max = devices_max / (one.config.pipeline * one.config.tensor);
    AddCandidates(one, data_max, requests_per_s, load, options, carry, rest);
  }
  const auto latency = [](const Candidate& c) { return c.execution_ms + c.waiting_ms; };
  const auto cost = [&](const Candidate& c) {
    return std::tuple(Instances(c.config, space.devices_per_instance), latency(c),
                      -c.throughput_per_s, c.config);
  };
  const auto cheaper = [&](const Candidate& a, const Candidate& b) { return cost(a) < cost(b); };
  if (!carry.empty()) {
    double best_ms = latency(carry.front());
    for (const Candidate& c : carry) best_ms = std::min(best_ms, latency(c));
    std::erase_if(
        carry, [&](const Candidate& c) { return latency(c) > best_ms * (1 + options.tie_band); });
    return OnSpares(*std::min_element(carry.begin(), carry.end(), cheaper), space, devices_max,
                    options.serving_spares);
  }
  if (rest.empty()) return std::nullopt;
  double most = 0;
  for (const Candidate& c : rest) most = std::max(most, c.throughput_per_s);
  std::erase_if(
      rest, [&](const Candidate& c) { return c.throughput_per_s < most * (1 - options.tie_band); });
  return *std::min_element(rest.begin(), rest.end(), cheaper);
}

}  // namespace millrace::plan::spot
