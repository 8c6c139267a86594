#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "sim/load/workload_file.h"

namespace millrace::sim {
namespace {

constexpr uint64_t kPhaseSeed = 1'000'003;  // between the seeds of two phases
constexpr size_t kMixedLengthsMax = 100'000;

std::string Describe(const LengthSpec& spec) {
  switch (spec.kind) {
    case LengthSpec::Kind::kFixed: return fmt::format("{:g} tokens", spec.a);
    case LengthSpec::Kind::kUniform:
      return fmt::format("uniform {:g} to {:g} tokens", spec.a, spec.b);
    case LengthSpec::Kind::kLognormal:
      return fmt::format("lognormal, mean {:g}, sd {:g} tokens", spec.a, spec.b);
  }
  return "";
}

double MeanOfPhases(const std::vector<WorkloadSpec>& phases) {
  double requests = 0, seconds = 0;
  for (const WorkloadSpec& phase : phases) {
    requests += *phase.rate * *phase.duration_s;
    seconds += *phase.duration_s;
  }
  return requests / seconds;
}

// The entries in use: the first `requests`, none later than `duration_s`.
std::vector<TraceEntry> Chosen(const WorkloadSpec& spec) {
  const auto count = std::min<uint64_t>(spec.requests.value_or(UINT64_MAX), spec.trace.size());
  std::vector<TraceEntry> entries(spec.trace.begin(),
                                  spec.trace.begin() + static_cast<int64_t>(count));
  if (spec.rate) RescaleRate(entries, *spec.rate);
  if (spec.duration_s) {
    const auto late = [&](const TraceEntry& e) { return e.arrival_s > *spec.duration_s; };
    entries.erase(std::find_if(entries.begin(), entries.end(), late), entries.end());
  }
  return entries;
}

}  // namespace

Status WorkloadSpec::Validate() const {
  if (arrivals == ArrivalKind::kTrace) {
    MR_CHECK(!trace.empty());
    const double seconds = rate ? static_cast<double>(trace.size()) / *rate : 0;
    if (seconds <= kWorkloadSecondsMax) return OkStatus();
    return InvalidArgument(
        fmt::format("{} requests at {:g} req/s take {:g} s, at most {:g} s are "
                    "simulated; raise the rate",
                    trace.size(), *rate, seconds, kWorkloadSecondsMax));
  }
  if (arrivals == ArrivalKind::kAllAtOnce) {
    if (requests && !duration_s && !rate) return OkStatus();
    return InvalidArgument(
        "requests that arrive all at once need a number of requests, and no rate or duration");
  }
  for (const WorkloadSpec& phase : phases) {
    MR_CHECK(phase.phases.empty() && phase.arrivals != ArrivalKind::kTrace);
    if (!phase.duration_s) return InvalidArgument("each phase needs a duration, such as 600 s");
    MR_RETURN_IF_ERROR(phase.Validate());
  }
  for (const WorkloadSpec& client : clients) {
    MR_CHECK(client.phases.empty() && client.clients.empty() && client.rate);
  }
  if (!rate) return InvalidArgument("the rate is missing, such as 5 req/s");
  if (!requests && !duration_s) {
    return InvalidArgument("give the number of requests, or a duration such as 600 s");
  }
  const double expected = static_cast<double>(requests.value_or(UINT64_MAX));
  const double seconds = std::min(duration_s.value_or(1e300), expected / *rate);
  if (seconds > kWorkloadSecondsMax ||
      seconds * *rate > static_cast<double>(kWorkloadRequestsMax)) {
    return InvalidArgument(
        fmt::format("{:g} requests in {:g} s; at most {} requests and {:g} s are simulated",
                    seconds * *rate, seconds, kWorkloadRequestsMax, kWorkloadSecondsMax));
  }
  return OkStatus();
}

std::optional<double> WorkloadSpec::MeanRate() const {
  if (arrivals == ArrivalKind::kAllAtOnce) return std::nullopt;
  if (rate || arrivals != ArrivalKind::kTrace) return rate;
  if (trace.back().arrival_s <= 0) return std::nullopt;
  return static_cast<double>(trace.size() - 1) / trace.back().arrival_s;
}

bool WorkloadSpec::SharesPrefixes() const {
  if (std::ranges::any_of(phases, &WorkloadSpec::SharesPrefixes)) return true;
  if (std::ranges::any_of(clients, &WorkloadSpec::SharesPrefixes)) return true;
  return prefixes.count > 0 || std::ranges::any_of(trace, [](const TraceEntry& entry) {
           return !entry.prefix.ids.empty();
         });
}

uint64_t WorkloadSpec::ExpectedRequests() const {
  const auto count = static_cast<double>(std::min<uint64_t>(
      requests.value_or(UINT64_MAX), arrivals == ArrivalKind::kTrace ? trace.size() : UINT64_MAX));
  const auto mean = MeanRate();
  const double within = duration_s && mean ? *duration_s * *mean : 1e300;
  return static_cast<uint64_t>(std::min({count, within, double{kWorkloadRequestsMax}}));
}

std::unique_ptr<Workload> WorkloadSpec::Make(uint64_t seed,
                                             std::optional<double> rate_instead) const {
  if (arrivals == ArrivalKind::kTrace) {
    WorkloadSpec spec = *this;
    if (rate_instead) spec.rate = rate_instead;
    return NewReplay(Chosen(spec), std::nullopt);
  }
  if (!phases.empty()) {
    const double faster = rate_instead.value_or(*rate) / MeanOfPhases(phases);
    std::vector<WorkloadPart> parts;
    for (const WorkloadSpec& phase : phases) {
      const uint64_t own_seed = seed + kPhaseSeed * parts.size();
      parts.push_back({phase.Make(own_seed, *phase.rate * faster), *phase.duration_s});
    }
    return NewInTurn(std::move(parts), requests.value_or(kWorkloadRequestsMax));
  }
  if (!clients.empty()) {
    const double faster = rate_instead.value_or(*rate) / *rate;
    std::vector<std::unique_ptr<Workload>> all;
    for (WorkloadSpec client : clients) {
      client.duration_s = duration_s;
      client.requests = requests;
      all.push_back(client.Make(seed + kPhaseSeed * (all.size() + 1), *client.rate * faster));
    }
    return NewOfClients(std::move(all), requests.value_or(kWorkloadRequestsMax));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  SyntheticOptions options;
  options.requests = requests.value_or(kWorkloadRequestsMax);
  options.duration_s = duration_s.value_or(kInfinity);
  options.rate = arrivals == ArrivalKind::kAllAtOnce ? kInfinity : rate_instead.value_or(*rate);
  options.burstiness = arrivals == ArrivalKind::kSteady ? kInfinity : 1 / (cv * cv);
  options.shape = shape;
  options.prompt = prompt;
  options.output = output;
  options.lengths = lengths;
  options.draw_lengths = draw_lengths;
  options.prefixes = prefixes;
  options.seed = seed;
  return NewSynthetic(std::move(options));
}

WorkloadSpec WorkloadSpec::Mixed() const {
  if (phases.empty() && clients.empty()) return *this;
  WorkloadSpec mixed = *this;
  mixed.arrivals = ArrivalKind::kGamma;
  mixed.cv = phases.empty() ? 1 : phases.front().cv;
  mixed.shape = {};
  mixed.lengths.clear();
  mixed.phases.clear();
  mixed.clients.clear();
  mixed.draw_lengths = true;
  // Every so many requests of a long workload, so that all phases count.
  const uint64_t step = 1 + ExpectedRequests() / kMixedLengthsMax;
  const auto stream = Make(0);
  uint64_t index = 0;
  for (auto request = stream->Next(); request; request = stream->Next()) {
    if (index++ % step != 0) continue;
    mixed.lengths.push_back({request->prompt_tokens, request->output_tokens});
  }
  return mixed;
}

std::string WorkloadSpec::Describe() const {
  const std::string count = FormatCount(static_cast<int64_t>(ExpectedRequests())) + " requests";
  if (!phases.empty()) {
    return fmt::format("{} in {} phases of {} in all, {:.4g} req/s on average", count,
                       phases.size(), FormatDuration(*duration_s), *rate);
  }
  if (!clients.empty()) {
    return fmt::format("{} of {} clients, {:.4g} req/s in all", count, clients.size(), *rate);
  }
  if (arrivals == ArrivalKind::kTrace) {
    const auto mean = MeanRate();
    return fmt::format("{} of a trace{}", count, mean ? fmt::format(", {:.4g} req/s", *mean) : "");
  }
  std::string how;
  switch (arrivals) {
    case ArrivalKind::kAllAtOnce: how = "all at once"; break;
    case ArrivalKind::kSteady: how = fmt::format("steady, {:g} req/s", *rate); break;
    default:
      how = cv == 1 ? fmt::format("Poisson, {:g} req/s", *rate)
                    : fmt::format("Gamma, CV {:g}, {:g} req/s", cv, *rate);
  }
  if (!shape.shares.empty()) {
    how += fmt::format(" on average over {} rates of {} each", shape.shares.size(),
                       FormatDuration(shape.every_s));
  }
  std::string begins;
  if (prefixes.count > 0) {
    begins = fmt::format(", {} shared prefixes of {} tokens", prefixes.count, prefixes.tokens);
  }
  if (!lengths.empty()) return fmt::format("{}, {}, lengths of a trace{}", count, how, begins);
  return fmt::format("{}, {}, prompt {}, output {}{}", count, how, sim::Describe(prompt),
                     sim::Describe(output), begins);
}

}  // namespace millrace::sim
