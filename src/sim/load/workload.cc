#include "sim/load/workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "sim/load/arrivals.h"

namespace millrace::sim {
namespace {

class Synthetic : public Workload {
 public:
  explicit Synthetic(SyntheticOptions options)
      : options_(std::move(options)),
        gaps_(Mix64(options_.seed)),
        lengths_(Mix64(options_.seed + 1)),
        choices_(Mix64(options_.seed + 2)) {
    for (int id = 0; id < options_.prefixes.count; ++id) {
      prefixes_.push_back({.ids = {id}, .tokens_per_id = options_.prefixes.tokens});
    }
    MR_CHECK(options_.rate > 0 && options_.burstiness > 0);
  }

  std::optional<SimRequest> Next() override {
    if (made_ == options_.requests) return std::nullopt;
    now_s_ = options_.shape.After(now_s_, ArrivalGap(options_.rate, options_.burstiness, gaps_));
    if (now_s_ > options_.duration_s) {
      made_ = options_.requests;
      return std::nullopt;
    }
    const Lengths lengths = NextLengths();
    ++made_;
    return SimRequest{
        .arrival = Time{} + Duration::Seconds(now_s_),
        .prompt_tokens = lengths.prompt_tokens,
        .output_tokens = lengths.output_tokens,
        .prefix = prefixes_.empty() ? nullptr : &prefixes_[choices_.Next() % prefixes_.size()]};
  }

 private:
  Lengths NextLengths() {
    const auto& known = options_.lengths;
    if (known.empty()) {
      const int prompt = DrawLength(options_.prompt, lengths_);
      return {prompt, DrawLength(options_.output, lengths_)};
    }
    const size_t i = options_.draw_lengths ? lengths_.Next() : made_;
    return known[i % known.size()];
  }

  const SyntheticOptions options_;
  Rng gaps_, lengths_, choices_;
  std::vector<PromptPrefix> prefixes_;
  uint64_t made_ = 0;
  double now_s_ = 0;
};

class TraceReplay : public Workload {
 public:
  explicit TraceReplay(std::vector<TraceEntry> entries) : entries_(std::move(entries)) {}
  std::optional<SimRequest> Next() override {
    if (next_ == entries_.size()) return std::nullopt;
    const TraceEntry& e = entries_[next_++];
    return SimRequest{.arrival = Time{} + Duration::Seconds(e.arrival_s),
                      .prompt_tokens = std::max(e.input_tokens, 1),
                      .output_tokens = std::max(e.output_tokens, 1),
                      .prefix = e.prefix.ids.empty() ? nullptr : &e.prefix};
  }

 private:
  std::vector<TraceEntry> entries_;
  size_t next_ = 0;
};

class InTurn : public Workload {
 public:
  InTurn(std::vector<WorkloadPart> parts, uint64_t requests)
      : parts_(std::move(parts)), left_(requests) {}
  std::optional<SimRequest> Next() override {
    for (; left_ > 0 && part_ < parts_.size(); begin_s_ += parts_[part_++].length_s) {
      auto request = parts_[part_].workload->Next();
      if (!request) continue;
      request->arrival = request->arrival + Duration::Seconds(begin_s_);
      --left_;
      return request;
    }
    return std::nullopt;
  }

 private:
  const std::vector<WorkloadPart> parts_;
  size_t part_ = 0;
  uint64_t left_;
  double begin_s_ = 0;
};

class OfClients : public Workload {
 public:
  OfClients(std::vector<std::unique_ptr<Workload>> clients, uint64_t requests)
      : clients_(std::move(clients)), left_(requests) {
    for (const auto& client : clients_) next_.push_back(client->Next());
  }
  std::optional<SimRequest> Next() override {
    std::optional<size_t> first;
    for (size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] && (!first || next_[i]->arrival < next_[*first]->arrival)) first = i;
    }
    if (!first || left_ == 0) return std::nullopt;
    --left_;
    SimRequest request = *std::exchange(next_[*first], clients_[*first]->Next());
    request.client = static_cast<int>(*first);
    return request;
  }

 private:
  const std::vector<std::unique_ptr<Workload>> clients_;
  std::vector<std::optional<SimRequest>> next_;  // of each client
  uint64_t left_;
};

double StandardNormal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}

}  // namespace

int DrawLength(const LengthSpec& spec, Rng& rng) {
  double length = spec.a;
  switch (spec.kind) {
    case LengthSpec::Kind::kFixed: break;
    case LengthSpec::Kind::kUniform:
      return static_cast<int>(
          rng.Between(static_cast<int64_t>(spec.a), static_cast<int64_t>(spec.b)));
    case LengthSpec::Kind::kLognormal: {
      const double variance = std::log(1 + spec.b * spec.b / (spec.a * spec.a));
      length =
          std::exp(std::log(spec.a) - variance / 2 + std::sqrt(variance) * StandardNormal(rng));
      break;
    }
  }
  return static_cast<int>(std::clamp(std::round(length), 1.0, static_cast<double>(spec.limit)));
}

std::unique_ptr<Workload> NewSynthetic(SyntheticOptions options) {
  return std::make_unique<Synthetic>(std::move(options));
}

std::unique_ptr<Workload> NewInTurn(std::vector<WorkloadPart> parts, uint64_t requests) {
  return std::make_unique<InTurn>(std::move(parts), requests);
}

std::unique_ptr<Workload> NewOfClients(std::vector<std::unique_ptr<Workload>> clients,
                                       uint64_t requests) {
  return std::make_unique<OfClients>(std::move(clients), requests);
}

std::unique_ptr<Workload> NewReplay(std::vector<TraceEntry> entries, std::optional<double> rate) {
  if (rate) RescaleRate(entries, *rate);
  return std::make_unique<TraceReplay>(std::move(entries));
}

}  // namespace millrace::sim
