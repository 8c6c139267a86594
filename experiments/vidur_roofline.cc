// Residuals of a roofline per operator on Vidur's measured tables (MLSys'24), of latency + bytes /
// bandwidth on its collectives, and of the estimate from first principles on splitwise-sim's
// published measurements. Fitted to every second row, evaluated on the others.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <set>

#include "cost/device_catalog.h"
#include "cost/first_principles_cost.h"
#include "cost/fit.h"
#include "cost/link_model.h"
#include "experiments/lib/splitwise/splitwise_table.h"
#include "experiments/lib/vidur/vidur_table.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

using vidur::VidurOperatorRow;

constexpr double kHalf = 2;  // bytes per number

struct Work {
  double flops = 0, bytes = 0;
};

Work Product(double rows, double in, double out) {
  return {2 * rows * in * out, (rows * in + in * out + rows * out) * kHalf};
}

// The operations and bytes of an operator on one of the TP devices.
std::optional<Work> WorkOf(const std::string& op, const VidurOperatorRow& r) {
  const auto t = static_cast<double>(r.num_tokens);
  const double tp = r.tensor_parallel, hidden = r.hidden;
  const double head = hidden / r.heads;
  const double attention = r.heads * head / tp, kv = r.kv_heads * head / tp;
  const double inner = r.intermediate / tp, gates = r.gated_mlp ? 2 : 1;
  if (op == "attn_pre_proj") return Product(t, hidden, attention + 2 * kv);
  if (op == "attn_post_proj") return Product(t, attention, hidden);
  if (op == "mlp_up_proj") return Product(t, hidden, gates * inner);
  if (op == "mlp_down_proj") return Product(t, inner, hidden);
  if (op == "attn_rope") return Work{0, 2 * t * (attention + kv) * kHalf};
  if (op == "mlp_act") return Work{0, t * (gates + 1) * inner * kHalf};
  if (op == "add") return Work{0, 3 * t * hidden * kHalf};
  if (op == "emb" || op == "input_layernorm" || op == "post_attention_layernorm") {
    return Work{0, 2 * t * hidden * kHalf};
  }
  return std::nullopt;
}

// Seconds = fixed + bytes / bandwidth + flops / rate.
std::vector<double> Terms(const Work& work) { return {1, work.bytes, work.flops}; }

Result<cost::RelativeErrors> HoldOut(const std::vector<std::vector<double>>& rows,
                                     const std::vector<double>& measured) {
  std::vector<std::vector<double>> fitted;
  std::vector<double> fitted_s, predicted, held_out_s;
  for (size_t i = 0; i < rows.size(); i += 2) {
    fitted.push_back(rows[i]);
    fitted_s.push_back(measured[i]);
  }
  MR_ASSIGN_OR_RETURN(const cost::Fit fit, cost::FitRelative(fitted, fitted_s));
  for (size_t i = 1; i < rows.size(); i += 2) {
    predicted.push_back(cost::Predict(rows[i], fit.coefficients));
    held_out_s.push_back(measured[i]);
  }
  if (held_out_s.empty()) return InvalidArgument("too few rows to hold any out");
  return cost::ErrorsOf(predicted, held_out_s);
}

Figure ErrorFigure(const std::string& name, const cost::RelativeErrors& errors) {
  return {.name = name,
          .ours = cost::FormatErrors(errors),
          .unit = "relative error",
          .verdict = errors.p95 <= 0.2 ? "a roofline describes it" : "a roofline misses its tail",
          .more = {{"p50", errors.p50}, {"p95", errors.p95}, {"max", errors.max}}};
}

Status AddOperators(const Context& context, const std::string& device, const std::string& model,
                    std::vector<Figure>& figures) {
  MR_ASSIGN_OR_RETURN(const auto rows, vidur::LoadVidurOperators(fmt::format(
                                           "{}/profiles/vidur/compute/{}/meta-llama/{}/mlp.csv",
                                           context.data, device, model)));
  for (const auto& [op, unused] : rows.front().median_s) {
    std::vector<std::vector<double>> terms;
    std::vector<double> measured;
    for (const VidurOperatorRow& row : rows) {
      const auto work = WorkOf(op, row);
      const double seconds = row.median_s.at(op);
      if (!work || seconds <= 0) continue;
      terms.push_back(Terms(*work));
      measured.push_back(seconds);
    }
    if (terms.empty()) continue;
    MR_ASSIGN_OR_RETURN(const cost::RelativeErrors errors, HoldOut(terms, measured));
    figures.push_back(ErrorFigure(fmt::format("{} {} {}", device, model, op), errors));
  }
  return {};
}

Status AddCollectives(const Context& context, const std::string& machine,
                      const std::string& collective, std::vector<Figure>& figures) {
  MR_ASSIGN_OR_RETURN(const auto rows,
                      vidur::LoadVidurCollectives(fmt::format("{}/profiles/vidur/network/{}/{}.csv",
                                                              context.data, machine, collective),
                                                  collective));
  std::set<std::pair<int, int>> groups;
  for (const auto& row : rows) groups.insert({row.num_workers, row.devices_per_node});
  for (const auto& [workers, per_node] : groups) {
    std::vector<cost::TransferSample> fitted, held_out;
    for (const auto& row : rows) {
      if (row.num_workers != workers || row.devices_per_node != per_node || row.median_s <= 0) {
        continue;
      }
      auto& into = fitted.size() <= held_out.size() ? fitted : held_out;
      into.push_back({static_cast<double>(row.bytes), row.median_s});
    }
    if (held_out.empty()) continue;
    MR_ASSIGN_OR_RETURN(const cost::LinkFit fit, cost::FitLink(fitted));
    std::vector<double> predicted, measured;
    for (const auto& sample : held_out) {
      predicted.push_back(fit.link.Seconds(sample.bytes));
      measured.push_back(sample.seconds);
    }
    Figure figure = ErrorFigure(
        fmt::format("{} {}, {} devices, {} per node", machine, collective, workers, per_node),
        cost::ErrorsOf(predicted, measured));
    figure.more["latency_us"] = fit.link.latency_s * 1e6;
    figure.more["gbytes_per_s"] = fit.link.bytes_per_s * 1e-9;
    figures.push_back(std::move(figure));
  }
  return {};
}

ModelSpec Llama70b() {
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.num_layers = 80;
  spec.hidden_size = 8192;
  spec.num_heads = 64;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.intermediate_size = 28672;
  spec.vocab_size = 32000;
  spec.dtype = DType::kF16;
  return spec;
}

// Nothing is fitted here: it uses published peaks and the efficiencies of another model on another
// engine.
Status AddEstimate(const Context& context, const std::string& device,
                   std::vector<Figure>& figures) {
  MR_ASSIGN_OR_RETURN(
      const auto rows,
      splitwise::LoadSplitwiseRows(context.data + "/profiles/splitwise-sim/perf_model.csv"));
  MR_ASSIGN_OR_RETURN(const cost::DeviceSpec spec, cost::FindDevice(device));
  for (const int tp : {4, 8}) {
    const cost::FirstPrinciplesCost estimate(Llama70b(), {0, 80}, spec, tp);
    std::vector<cost::StepSample> prompts, decodes;
    for (const splitwise::SplitwiseRow& row : rows) {
      if (row.model != "llama2-70b" || row.hardware != device || row.tensor_parallel != tp)
        continue;
      prompts.push_back(row.Prompt());
      decodes.push_back(row.Decode());
    }
    if (prompts.empty()) return InvalidArgument("no rows of llama2-70b on " + device);
    figures.push_back(
        ErrorFigure(fmt::format("first principles, llama2-70b on {} TP{}, prompt", device, tp),
                    cost::ErrorsOn(estimate, prompts)));
    figures.push_back(
        ErrorFigure(fmt::format("first principles, llama2-70b on {} TP{}, token", device, tp),
                    cost::ErrorsOn(estimate, decodes)));
    for (size_t i = figures.size() - 2; i < figures.size(); ++i) {
      figures[i].verdict = "an estimate, nothing fitted: " +
                           std::string(figures[i].more["p50"] <= 0.25 ? "usable to rank devices"
                                                                      : "profile before trusting");
    }
  }
  return {};
}

Result<std::vector<Figure>> Run(const Context& context) {
  std::vector<Figure> figures;
  for (const char* device : {"a100", "h100"}) {
    for (const char* model : {"Llama-2-7b-hf", "Llama-2-70b-hf"}) {
      MR_RETURN_IF_ERROR(AddOperators(context, device, model, figures));
    }
  }
  // The published H100 pairwise send_recv data is a copy of the A100's, so it is not evidence.
  constexpr std::array<std::pair<const char*, const char*>, 8> kCollectives = {
      {{"a100_dgx", "all_reduce"},
       {"a100_dgx", "send_recv"},
       {"a100_pairwise_nvlink", "all_reduce"},
       {"a100_pairwise_nvlink", "send_recv"},
       {"a40_pairwise_nvlink", "send_recv"},
       {"h100_dgx", "all_reduce"},
       {"h100_dgx", "send_recv"},
       {"h100_pairwise_nvlink", "all_reduce"}}};
  for (const auto& [machine, collective] : kCollectives) {
    MR_RETURN_IF_ERROR(AddCollectives(context, machine, collective, figures));
  }
  for (const char* device : {"a100-80gb", "h100-80gb"}) {
    MR_RETURN_IF_ERROR(AddEstimate(context, device, figures));
  }
  return figures;
}

}  // namespace

Experiment VidurRooflineExperiment() {
  return {
      .name = "vidur_roofline",
      .title = "Roofline residuals per operator and per collective on Vidur's tables (MLSys'24)",
      .quick = true,
      .run = Run};
}

}  // namespace millrace::experiments
