#include "experiments/vllm_paper.h"

#include <cmath>

#include "base/rng.h"

namespace millrace::experiments {
namespace {

constexpr int kPromptMax = 1024;

struct Moments {
  double sum = 0, squares = 0;
  void Add(double x) { sum += x, squares += x * x; }
  double Mean(size_t n) const { return sum / static_cast<double>(n); }
  double Sd(size_t n) const {
    return std::sqrt(squares / static_cast<double>(n) - Mean(n) * Mean(n));
  }
};

}  // namespace

std::vector<sim::Lengths> DrawVllmLengths(const VllmDataset& d) {
  constexpr size_t kCount = 20'000;
  constexpr int kRounds = 12;
  using Kind = sim::LengthSpec::Kind;
  sim::LengthSpec prompt{Kind::kLognormal, d.prompt_mean, d.prompt_sd};
  sim::LengthSpec output{Kind::kLognormal, d.output_mean, d.output_sd};
  std::vector<sim::Lengths> lengths;
  for (int round = 0; round < kRounds; ++round) {
    Rng rng(5);
    Moments prompts, outputs;
    lengths.clear();
    while (lengths.size() < kCount) {
      const int p = sim::DrawLength(prompt, rng), o = sim::DrawLength(output, rng);
      if (p > kPromptMax || p + o > kVllmModelLen) continue;
      lengths.push_back({p, o});
      prompts.Add(p);
      outputs.Add(o);
    }
    prompt.a *= d.prompt_mean / prompts.Mean(kCount);
    prompt.b *= d.prompt_sd / prompts.Sd(kCount);
    output.a *= d.output_mean / outputs.Mean(kCount);
    output.b *= d.output_sd / outputs.Sd(kCount);
  }
  return lengths;
}

}  // namespace millrace::experiments
