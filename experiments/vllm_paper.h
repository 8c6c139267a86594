// The vLLM paper's published values on OPT-13B, and substitutes for its lengths. Pure; any thread.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sim/load/workload.h"

namespace millrace::experiments {

inline constexpr int kVllmModelLen = 2048;

// Requests per second of one curve of figure 12. `knee` is read off the plot by eye. The curve has
// points only from `first` to `last`, the rates of the released script.
struct VllmRate {
  std::optional<double> knee;
  double first, last;
};

// Lengths are a SUBSTITUTE, because the paper's are not published: log-normal, independent, with
// prompts of at most 1,024 and at most 2,048 tokens in total (vLLM's benchmark drops the others),
// and with the published means after that. Standard deviations:
// - ShareGPT outputs: as implied by the paper. Figure 2's "reserved" divided by figure 13's batch
//   is 291 remaining tokens per request (three systems: 299, 287, 291). In a batch that is
//   (m + s^2 / m) / 2, so s = 289, 0.855 of the mean.
// - Prompts: the same share of their mean; they affect only rounded values.
// - Alpaca outputs: no data. As for an exponential distribution: s = m. With 0.855 of the mean,
//   Pow2 and Oracle batch 49 and 83 instead of 42 and 72.
struct VllmDataset {
  const char* name;
  double prompt_mean, prompt_sd, output_mean, output_sd;
  double rate;       // requests per second of figure 13
  double knees_max;  // where the search for knees starts
  std::array<double, 4> paper_batch;
  std::array<VllmRate, 4> paper_rate;
};

// Orca (Max) on Alpaca was read off at 7, but the script runs it only at 2 to 5, so that value is
// void.
inline constexpr std::array<VllmDataset, 2> kVllmDatasets = {{
    {"ShareGPT",
     161.31,
     138,
     337.99,
     289,
     2,
     4,
     {7.00, 9.81, 13.62, 30.42},
     {{{.5, .2, .75}, {.75, .25, .9}, {1.1, .5, 1.5}, {1.9, 1, 2}}}},
    {"Alpaca",
     19.31,
     16.5,
     58.45,
     58.45,
     30,
     64,
     {7.00, 43.24, 72.75, 132.44},
     {{{std::nullopt, 2, 5}, {13, 7.5, 18}, {20, 15, 24}, {28, 20, 31.5}}}},
}};

// Figure 2, per cent: token states, reserved, internal, external and other.
inline constexpr std::array<const char*, 4> kVllmUsage = {
    "20.4 / 13.3 / 57.3 / 8.9", "26.8 / 17.9 / 13.6 / 41.6", "38.2 / 25.2 / - / 36.6",
    "96.3 / - / - / -"};

// Redraws with other parameters until mean and deviation, after the limits, have the required
// values.
std::vector<sim::Lengths> DrawVllmLengths(const VllmDataset& d);

}  // namespace millrace::experiments
