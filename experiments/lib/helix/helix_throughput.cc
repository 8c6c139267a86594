#include "experiments/lib/helix/helix_throughput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::experiments::helix {
namespace {

// The released planner's constants: the size of a request and the share of the KV in use.
constexpr double kPromptTokens = 750, kDecodeTokens = 240;
constexpr double kBlockTokens = 16;
constexpr double kKvInUse = 0.3;
constexpr double kSpareLayers = 1.2;  // below it, memory is tight and nodes hold all they can
constexpr int kRounds = 10;

// T(k) for the requests that fit in the device's KV. A request has its prompt in one of 240 steps.
double TokensPerS(const HelixDevice& device, int k, double share) {
  const double kv_tokens = kBlockTokens * static_cast<double>(device.kv_blocks[k - 1]) * k;
  const double requests = std::trunc(kKvInUse * kv_tokens / k) / (kPromptTokens + kDecodeTokens);
  double prompts = requests * share / kDecodeTokens;
  // nearbyint rounds halves to even, as the reference does.
  double prompt_tokens = std::nearbyint(kPromptTokens * prompts);
  double decode_tokens = std::nearbyint(requests * share);
  if (prompts > 1) {
    prompts = 1;
    prompt_tokens = kPromptTokens;
    decode_tokens = kDecodeTokens;
  }
  const double tokens = prompt_tokens + decode_tokens;
  if (prompts >= 1) {
    const double batch_s =
        device.layer.PromptSeconds(prompt_tokens) + device.layer.DecodeSeconds(decode_tokens);
    return tokens / (k * batch_s);
  }
  // Less than one prompt per step: one of every `steps` batches has a prompt.
  const double steps = 1 / prompts;
  const double cycle_s = device.layer.PromptSeconds(std::trunc(prompt_tokens * steps)) +
                         steps * device.layer.DecodeSeconds(decode_tokens);
  return steps * tokens / (k * cycle_s);
}

class Recursion {
 public:
  Recursion(const std::vector<HelixDevice>& fleet, int num_layers)
      : fleet_(fleet), num_layers_(num_layers) {
    double held = 0;
    for (const HelixDevice& d : fleet) {
      typical_.push_back(d.typical_layers);
      rate_.push_back(d.layers_per_s);
      held += d.count * d.typical_layers;
    }
    if (held < kSpareLayers * num_layers) {
      for (size_t g = 0; g < fleet.size(); ++g) typical_[g] = fleet[g].max_layers();
    }
  }

  double At(size_t g, int k) const {
    double weighted = 0, total = 0;
    for (size_t o = 0; o < fleet_.size(); ++o) {
      weighted += fleet_[o].count * typical_[o] * (1 / rate_[o]);
      total += fleet_[o].count * typical_[o];
    }
    const double own = k * (1 / rate_[g]);
    const double share = own / ((num_layers_ - k) * (weighted / total) + own);
    return TokensPerS(fleet_[g], k, share);
  }

  void Round() {
    std::vector<double> next;
    for (size_t g = 0; g < fleet_.size(); ++g) {
      const int k = std::clamp(static_cast<int>(typical_[g]), 1, fleet_[g].max_layers());
      next.push_back(At(g, k) * typical_[g]);
    }
    rate_ = std::move(next);
  }

 private:
  const std::vector<HelixDevice>& fleet_;
  int num_layers_;
  std::vector<double> typical_, rate_;
};

struct NamedGuess {
  std::string_view model, device;
  HelixGuess guess;
};
constexpr NamedGuess kGuesses[] = {
    {"llama2_70b", "A100", {8, 80}},  {"llama2_70b", "V100", {3, 40}},
    {"llama2_70b", "L4", {4, 20}},    {"llama2_70b", "L4x2", {9, 30}},
    {"llama2_70b", "T4", {3, 12.5}},  {"llama2_70b", "T4x2", {6, 20}},
    {"llama2_70b", "T4x4", {12, 30}}, {"llama1_30b", "A100", {12, 48}},
    {"llama1_30b", "V100", {4, 25}},  {"llama1_30b", "L4", {8, 9}},
    {"llama1_30b", "L4x2", {14, 15}}, {"llama1_30b", "T4", {4, 8}},
    {"llama1_30b", "T4x2", {10, 15}}, {"llama1_30b", "T4x4", {20, 23}},
};

}  // namespace

Result<HelixGuess> HelixFirstGuess(std::string_view model, std::string_view device) {
  for (const NamedGuess& named : kGuesses) {
    if (named.model == model && named.device == device) return named.guess;
  }
  return NotFound(fmt::format("no first guess for {} on {}", model, device));
}

std::vector<std::vector<double>> HelixThroughput(const std::vector<HelixDevice>& fleet,
                                                 int num_layers) {
  MR_CHECK(!fleet.empty());
  for (const HelixDevice& d : fleet) {
    MR_CHECK(d.count > 0 && !d.kv_blocks.empty() && d.typical_layers > 0 && d.layers_per_s > 0);
  }
  Recursion recursion(fleet, num_layers);
  for (int round = 0; round < kRounds; ++round) recursion.Round();
  std::vector<std::vector<double>> rates(fleet.size());
  for (size_t g = 0; g < fleet.size(); ++g) {
    for (int k = 1; k <= fleet[g].max_layers(); ++k) rates[g].push_back(recursion.At(g, k));
  }
  return rates;
}

}  // namespace millrace::experiments::helix
