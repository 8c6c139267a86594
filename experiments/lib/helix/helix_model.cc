#include "experiments/lib/helix/helix_model.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "cost/layer_table_cost.h"
#include "plan/io/text_fields.h"

namespace millrace::experiments::helix {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr int kDecodeTokensMax = 1024;  // of a batch
constexpr int kPromptRequestsMax = 16;  // of a batch
constexpr int kPromptTokensMax = kPromptRequestsMax * HelixModel::kPromptTokensMax;
constexpr int kIterations = 10;   // of the throughput's fixed point
constexpr double kKvShare = 0.3;  // share of the cache assumed in use
constexpr double kMeanPrompt = 750;
constexpr double kSecondsPerMs = 0.001;

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The fields of one CSV line as numbers; none if one is invalid or their number is not `count`.
std::optional<std::vector<double>> Numbers(std::string_view line, size_t skip, size_t count) {
  std::vector<double> numbers;
  for (size_t field = 0; !line.empty(); ++field) {
    const size_t comma = std::min(line.find(','), line.size());
    if (field >= skip) {
      const auto number = plan::NumberIn(plan::Trimmed(line.substr(0, comma)));
      if (!number) return std::nullopt;
      numbers.push_back(*number);
    }
    line.remove_prefix(std::min(comma + 1, line.size()));
  }
  if (numbers.size() != count) return std::nullopt;
  return numbers;
}

Status ParseLimits(std::string_view text, HelixModel* model) {
  plan::LineReader lines(text);
  while (lines.Next()) {
    const std::string_view line = plan::Trimmed(lines.text());
    if (!line.starts_with(model->name + ",")) continue;
    const size_t gpu_at = model->name.size() + 1;
    const std::string gpu(line.substr(gpu_at, line.find(',', gpu_at) - gpu_at));
    const auto fields = Numbers(line, 2, 5);  // layers, blocks, entries, requests, tokens
    auto& limits = model->gpus[gpu].limits;
    if (!fields || (*fields)[0] != static_cast<double>(limits.size() + 1) || (*fields)[2] < 0 ||
        (*fields)[2] > 1e15 || (*fields)[3] < 1 || (*fields)[3] > kPromptRequestsMax ||
        (*fields)[4] < 1 || (*fields)[4] > kDecodeTokensMax) {
      return plan::ErrorAt("node_limits.csv", lines.line(), 1,
                           "expected model,gpu,layers,blocks,entries,requests,tokens with layers "
                           "counting from 1, requests at most 16 and tokens at most 1024");
    }
    limits.push_back({.kv_entries = static_cast<int64_t>((*fields)[2]),
                      .prompt_max_requests = static_cast<int>((*fields)[3]),
                      .decode_max_tokens = static_cast<int>((*fields)[4])});
  }
  if (model->gpus.empty()) return NotFound("node_limits.csv has no line of " + model->name);
  return OkStatus();
}

// The original's interpolation between two points, operation by operation: the last bit affects its
// event order (helix_simulator.h).
double LayerSeconds(const cost::PiecewiseLinear& curve_ms, double tokens) {
  const auto& points = curve_ms.points();
  if (tokens > points.back().x) return curve_ms.AtSmoothed(tokens) * kSecondsPerMs;
  const auto right = std::ranges::lower_bound(points, tokens, {}, &cost::PiecewiseLinear::Point::x);
  const double right_s = right->y * kSecondsPerMs;
  if (right->x == tokens || right == points.begin()) return right_s;
  const auto left = std::prev(right);
  const double left_s = left->y * kSecondsPerMs;
  return left_s + (right_s - left_s) * (tokens - left->x) / (right->x - left->x);
}

struct Typical {
  double prompts = 0;
  int prompt_tokens = 0, decode_tokens = 0;
};

struct FleetView {
  std::map<std::string, int> layers;   // held by a typical node of the kind
  std::map<std::string, double> rate;  // layers per unit of time: only ratios matter
};

FleetView FirstView(const HelixModel& model, const HelixFleet& fleet) {
  const bool small = model.num_layers == 60;
  static const std::map<std::string, int> kLayers70 = {
      {"A100", 8}, {"V100", 3}, {"L4", 4}, {"L4x2", 9}, {"T4", 3}, {"T4x2", 6}, {"T4x4", 12}};
  static const std::map<std::string, int> kLayers30 = {
      {"A100", 12}, {"V100", 4}, {"L4", 8}, {"L4x2", 14}, {"T4", 4}, {"T4x2", 10}, {"T4x4", 20}};
  static const std::map<std::string, double> kRate70 = {{"A100", 80}, {"V100", 40}, {"L4", 20},
                                                        {"L4x2", 30}, {"T4", 12.5}, {"T4x2", 20},
                                                        {"T4x4", 30}};
  static const std::map<std::string, double> kRate30 = {
      {"A100", 48}, {"V100", 25}, {"L4", 9}, {"L4x2", 15}, {"T4", 8}, {"T4x2", 15}, {"T4x4", 23}};
  FleetView view;
  int layers = 0;
  for (const auto& [gpu, count] : fleet) {
    view.layers[gpu] = (small ? kLayers30 : kLayers70).at(gpu);
    view.rate[gpu] = (small ? kRate30 : kRate70).at(gpu);
    layers += count * view.layers[gpu];
  }
  if (layers < 1.2 * model.num_layers) {
    for (auto& [gpu, held] : view.layers) held = model.gpus.at(gpu).max_layers();
  }
  return view;
}

// The average time of a layer over all machines, by the typical layers held.
double MeanLayerTime(const HelixFleet& fleet, const FleetView& view) {
  double time = 0, layers = 0;
  for (const auto& [gpu, count] : fleet) {
    const double held = count * view.layers.at(gpu);
    time += held / view.rate.at(gpu);
    layers += held;
  }
  return time / layers;
}

Typical TypicalBatch(const HelixModel& model, const HelixGpu& gpu, double rate, double mean_time,
                     int layers) {
  const double own = layers / rate;
  const double ratio = own / ((model.num_layers - layers) * mean_time + own);
  const auto kv = static_cast<double>(gpu.limits[layers - 1].kv_entries);
  const double active = std::floor(kKvShare * kv / layers) / HelixModel::kMeanTotalTokens;
  Typical batch;
  batch.prompts = active * ratio / HelixModel::kMeanOutputTokens;
  if (batch.prompts > 1) {
    return {1, static_cast<int>(kMeanPrompt), static_cast<int>(HelixModel::kMeanOutputTokens)};
  }
  batch.prompt_tokens = static_cast<int>(std::nearbyint(kMeanPrompt * batch.prompts));
  batch.decode_tokens = static_cast<int>(std::nearbyint(active * ratio));
  return batch;
}

double ThroughputOf(const HelixModel& model, const HelixGpu& gpu, double rate, double mean_time,
                    int layers) {
  const Typical batch = TypicalBatch(model, gpu, rate, mean_time, layers);
  const double scale = batch.prompts >= 1 ? 1 : 1 / batch.prompts;
  const double tokens = scale * (batch.prompt_tokens + batch.decode_tokens);
  const auto prompt_tokens = static_cast<size_t>(batch.prompt_tokens * scale);
  return tokens / (layers * (gpu.prompt_s.at(prompt_tokens) +
                             scale * gpu.decode_s.at(static_cast<size_t>(batch.decode_tokens))));
}

}  // namespace

const HelixLimits& HelixGpu::LimitsOf(int layers) const {
  MR_CHECK(layers >= 1 && !limits.empty());
  return limits[static_cast<size_t>(std::min(layers, max_layers()) - 1)];
}

Result<HelixModel> LoadHelixModel(const std::string& helix_data, std::string_view name) {
  HelixModel model;
  model.name = name;
  if (name == "llama2_70b") {
    model.num_layers = 80;
    model.activation_bytes = 8192 * 2;
    model.layer_bytes = 1.53e9;
  } else if (name == "llama1_30b") {
    model.num_layers = 60;
    model.activation_bytes = 6656 * 2;
    model.layer_bytes = 1e9;
  } else {
    return NotFound("no model \"" + model.name + "\": llama1_30b or llama2_70b");
  }
  const std::string folder = helix_data + "/profiles/";
  MR_ASSIGN_OR_RETURN(const std::string limits,
                      ReadFile(folder + "node_limits.csv", kFileBytesMax));
  MR_RETURN_IF_ERROR(ParseLimits(limits, &model));
  for (auto& [gpu, figures] : model.gpus) {
    MR_ASSIGN_OR_RETURN(const cost::LayerTable table,
                        cost::LayerTable::Load(folder + model.name + "/" + Lower(gpu)));
    for (int tokens = 0; tokens <= kPromptTokensMax; ++tokens) {
      figures.prompt_s.push_back(LayerSeconds(table.prompt_ms(), tokens));
    }
    for (int tokens = 0; tokens <= kDecodeTokensMax; ++tokens) {
      figures.decode_s.push_back(LayerSeconds(table.decode_ms(), tokens));
    }
  }
  return model;
}

std::map<std::string, std::vector<double>> HelixThroughput(const HelixModel& model,
                                                           const HelixFleet& fleet) {
  FleetView view = FirstView(model, fleet);
  for (int i = 0; i < kIterations; ++i) {
    const double mean_time = MeanLayerTime(fleet, view);
    std::map<std::string, double> next;
    for (const auto& [gpu, layers] : view.layers) {
      next[gpu] =
          ThroughputOf(model, model.gpus.at(gpu), view.rate.at(gpu), mean_time, layers) * layers;
    }
    view.rate = next;
  }
  const double mean_time = MeanLayerTime(fleet, view);
  std::map<std::string, std::vector<double>> tokens_per_s;
  for (const auto& [gpu, count] : fleet) {
    const HelixGpu& figures = model.gpus.at(gpu);
    for (int k = 1; k <= figures.max_layers(); ++k) {
      tokens_per_s[gpu].push_back(ThroughputOf(model, figures, view.rate.at(gpu), mean_time, k));
    }
  }
  return tokens_per_s;
}

}  // namespace millrace::experiments::helix
