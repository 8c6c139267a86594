// SpotServe: the latency formula and the optimizer's decisions (Algorithm 1), cell by cell, and
// what the tie band chooses instead.
#include <fmt/format.h>

#include <cmath>
#include <span>

#include "base/file.h"
#include "experiments/list.h"
#include "plan/spot/optimizer.h"

namespace millrace::experiments {
namespace {

using plan::spot::Candidate;
using plan::spot::Profile;

constexpr size_t kProfileBytesMax = 1 << 20;

struct Row {
  int devices;
  const char* decision;  // D, P, M, B, l_exe in ms, throughput in requests per second
};

// "fb": no configuration carries the load; the highest throughput is chosen.
const Row kOpt[] = {
    {4, "(1,1,4,4) 5290 0.756 fb"}, {8, "(2,1,4,4) 5290 1.512 fb"}, {12, "(3,1,4,4) 5290 2.268"},
    {16, "(4,1,4,4) 5290 3.025"},   {20, "(5,1,4,2) 4889 2.045"},   {24, "(6,1,4,2) 4889 2.455"},
    {28, "(7,1,4,2) 4889 2.864"},   {32, "(8,1,4,2) 4889 3.273"},   {36, "(9,1,4,2) 4889 3.682"},
    {40, "(5,2,4,2) 4729 2.114"},   {44, "(5,2,4,2) 4729 2.114"},   {48, "(6,2,4,2) 4729 2.537"}};
const Row kGpt[] = {{12, "(1,3,4,4) 14459 0.277 fb"}, {16, "(1,2,8,4) 12961 0.309 fb"},
                    {20, "(1,2,8,4) 12961 0.309 fb"}, {24, "(2,3,4,4) 14459 0.553"},
                    {28, "(2,3,4,4) 14459 0.553"},    {32, "(2,2,8,4) 12961 0.617"},
                    {36, "(2,2,8,4) 12961 0.617"},    {40, "(2,2,8,4) 12961 0.617"},
                    {44, "(2,2,8,4) 12961 0.617"},    {48, "(3,2,8,2) 12116 0.495"}};
const Row kLlama[] = {
    {16, "(1,2,8,4) 17751 0.225"}, {20, "(1,2,8,4) 17751 0.225"}, {24, "(1,3,8,4) 17498 0.229"},
    {28, "(1,3,8,4) 17498 0.229"}, {32, "(1,4,8,4) 17383 0.230"}, {36, "(1,4,8,4) 17383 0.230"},
    {40, "(1,4,8,4) 17383 0.230"}, {44, "(1,4,8,4) 17383 0.230"}, {48, "(1,6,8,4) 17291 0.231"}};

struct Case {
  const char* model;
  const char* file;
  int devices_min;
  double load;
  plan::spot::ParallelConfig single;
  double single_ms;
  std::span<const Row> rows;
};

const Case kCases[] = {{"OPT-6.7B", "6.7B", 4, 2.0, {1, 1, 4, 1, 1, 1}, 5447.33, kOpt},
                       {"GPT-20B", "h6144", 12, 0.4, {1, 3, 4, 1, 1, 1}, 14372.83, kGpt},
                       {"LLaMA-30B", "h7168", 16, 0.2, {1, 2, 8, 1, 1, 1}, 17539.87, kLlama}};

std::string Print(const Candidate& c) {
  return fmt::format("{} {} {:.3f}{}", ToString(c.config), std::lround(c.execution_ms),
                     c.throughput_per_s, c.carries_load ? "" : " fb");
}

Result<std::vector<Figure>> Run(const Context& context) {
  std::vector<Figure> figures;
  for (const Case& test : kCases) {
    const std::string path =
        fmt::format("{}/spot/spotserve/T4-4x_megatron_{}_profile.json", context.data, test.file);
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kProfileBytesMax));
    MR_ASSIGN_OR_RETURN(const Profile profile, plan::spot::ParseProfile(text));
    const double ms = Execution(profile, test.single)->Total(128);
    figures.push_back({fmt::format("{}, one request", test.model), test.single_ms,
                       std::round(ms * 100) / 100, "ms",
                       std::abs(ms - test.single_ms) < 0.005 ? "exact" : "not reproduced"});
    const plan::spot::SearchSpace space{.devices_min = test.devices_min, .devices_per_instance = 4};
    for (const Row& row : test.rows) {
      const auto published = OptimizeAsPublished(profile, space, row.devices, test.load);
      const auto banded = Optimize(profile, space, row.devices, test.load, {});
      if (!published.has_value() || !banded.has_value()) {
        return Internal(fmt::format("{} fits on no {} devices", test.model, row.devices));
      }
      figures.push_back({fmt::format("{} on {} GPUs, {} req/s", test.model, row.devices, test.load),
                         row.decision,
                         Print(*published),
                         "(D,P,M,B) ms req/s",
                         Print(*published) == row.decision ? "exact" : "not reproduced",
                         {{"with_tie_band", Print(*banded)},
                          {"instances", Instances(published->config, 4)},
                          {"instances_with_tie_band", Instances(banded->config, 4)}}});
    }
  }
  return figures;
}

}  // namespace

Experiment SpotGoldensExperiment() {
  return {.name = "spot_goldens",
          .title = "SpotServe: single-request latencies and the optimizer's decisions (Alg. 1)",
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
