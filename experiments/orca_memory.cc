// Orca section 6.1: which batch sizes FasterTransformer can hold, by arithmetic. It allocates the
// keys and values of 2,048 tokens for every request of the batch before it starts.
#include <fmt/format.h>

#include <cmath>

#include "core/model_spec.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

constexpr double kGpuBytes = 40e9;
constexpr int kTokens = 2048;

struct Case {
  const char* name;
  int layers, hidden, gpus;
  double parameters;
  double reserve_bytes_per_gpu;  // activations and workspace, chosen to match the paper
  int paper_first_impossible;    // "batch size 8 or more" / "16 or more"
};
// Shapes of the paper's Table 1; parameter counts as in their names.
constexpr Case kCases[] = {{"13B", 40, 5120, 1, 13e9, 0.6e9, 8},
                           {"101B", 80, 10240, 8, 101e9, 1.4e9, 16}};

Result<std::vector<Figure>> Run(const Context&) {
  std::vector<Figure> figures;
  for (const Case& c : kCases) {
    const ModelSpec spec{.num_layers = c.layers,
                         .num_heads = c.hidden / 128,
                         .num_kv_heads = c.hidden / 128,
                         .head_dim = 128,
                         .dtype = DType::kF16};
    const auto kv_per_request = static_cast<double>(spec.KvBytesPerToken()) * kTokens;
    const double room = c.gpus * (kGpuBytes - c.reserve_bytes_per_gpu) - c.parameters * 2;
    const double held = room / kv_per_request;
    int batch = 1;  // the paper tries powers of two
    while (batch <= held) batch *= 2;
    figures.push_back({.name = fmt::format("{}: KV bytes per token", c.name),
                       .paper = nullptr,
                       .ours = spec.KvBytesPerToken(),
                       .unit = "bytes",
                       .verdict = "2 x layers x hidden x 2 bytes"});
    figures.push_back(
        {.name = fmt::format("{}: smallest batch that does not fit", c.name),
         .paper = c.paper_first_impossible,
         .ours = batch,
         .unit = "requests",
         .verdict = fmt::format("{}: {:.1f} requests fit beside {:.1f} GB per GPU of activations "
                                "(a reserve we chose; without it {:.1f} fit)",
                                batch == c.paper_first_impossible ? "reproduced" : "off", held,
                                c.reserve_bytes_per_gpu * 1e-9,
                                (c.gpus * kGpuBytes - c.parameters * 2) / kv_per_request)});
  }
  return figures;
}

}  // namespace

Experiment OrcaMemoryExperiment() {
  return {.name = "orca_memory",
          .title = "Orca section 6.1: the memory frontier of allocating 2,048 tokens per request",
          .needs_data = false,
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
