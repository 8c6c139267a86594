// SpotServe's main experiment (section 6.2): six availability segments and three models; SpotServe,
// Rerouting, Reparallelization and Millrace's own policy; arrivals as drawn by the released
// generator and as true Gamma with the same nominal CV; cost per token.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/file.h"
#include "experiments/lib/spotserve/arrivals.h"
#include "experiments/lib/spotserve/spot_sim.h"
#include "experiments/list.h"

namespace millrace::experiments {
namespace {

using sim::AvailabilityTrace;
using spotserve::ArrivalSpec;
using spotserve::Batching;
using spotserve::SpotCloud;
using spotserve::SpotModel;
using spotserve::SpotOptions;
using spotserve::SpotReport;
using spotserve::Spread;
using spotserve::System;

constexpr size_t kFileBytesMax = 1 << 20;
constexpr double kGptRate = 0.35;
constexpr int kGammaSeeds = 5;

// Millrace: the load with the headroom that the released scripts give GPT-20B, and with the two
// spare machines serving.
const plan::spot::OptimizeOptions kOurs{.headroom = 1.15, .serving_spares = 2};

struct ModelCase {
  const char* name;
  const char* profile;
  int devices_min;
  double rate, required;
  int layers, hidden;
};

const ModelCase kModels[] = {{"OPT-6.7B", "6.7B", 4, 1.5, 2.0, 32, 4096},
                             {"GPT-20B", "h6144", 12, kGptRate, 0.4, 44, 6144},
                             {"LLaMA-30B", "h7168", 16, 0.2, 0.2, 48, 7168}};

struct Published {
  double mean[3], p99[3];  // Reparallelization, Rerouting, SpotServe: GPT-20B, seconds
};

struct Segment {
  const char* name;
  const char* file;
  std::optional<double> on_demand_after_s;
  bool by_minute;
  std::optional<Published> published;
};

const Segment kSegments[] = {
    {"A_S",
     "trace_0304_real.A_S.jsonl",
     {},
     false,
     Published{{32.045, 26.333, 23.518}, {61.287, 51.008, 46.108}}},
    {"B_S",
     "trace_0506_real.B_S.jsonl",
     {},
     false,
     Published{{27.068, 47.570, 23.315}, {56.284, 99.115, 37.083}}},
    {"A_S+O", "trace_0304_ondemand.A_S+O.jsonl", 90, false,
     Published{{32.663, 30.373, 23.416}, {65.816, 50.732, 49.005}}},
    {"B_S+O", "trace_0506_ondemand.B_S+O.jsonl", 90, false,
     Published{{31.915, 24.580, 20.724}, {73.257, 43.239, 33.388}}},
    {"A'_S+O", "trace_0304_workload.A_S+O_fluct.jsonl", 90, true, {}},
    {"B'_S+O", "trace_0506_workload.B_S+O_fluct.jsonl", 90, true, {}},
};

struct Variant {
  const char* name;
  System system;
  Batching batching;
};

const Variant kVariants[] = {
    {"Reparallelization", System::kReparallelization, Batching::kToCompletion},
    {"Rerouting", System::kRerouting, Batching::kToCompletion},
    {"SpotServe", System::kSpotServe, Batching::kToCompletion},
    {"Millrace", System::kMillrace, Batching::kToCompletion},
    {"Millrace, continuous", System::kMillrace, Batching::kContinuous},
};

struct Inputs {
  std::vector<SpotModel> models;  // in the order of kModels
  std::vector<AvailabilityTrace> traces;
  std::vector<double> rates_by_minute;  // of GPT-20B
};

Result<Inputs> Read(const Context& context) {
  const std::string folder = context.data + "/spot/spotserve/";
  Inputs inputs;
  for (const ModelCase& m : kModels) {
    MR_ASSIGN_OR_RETURN(
        const std::string text,
        ReadFile(folder + "T4-4x_megatron_" + m.profile + "_profile.json", kFileBytesMax));
    SpotModel model;
    MR_ASSIGN_OR_RETURN(model.profile, plan::spot::ParseProfile(text));
    model.space = {.devices_min = m.devices_min, .batch_max = 4, .devices_per_instance = 4};
    // The released engine computes in 32 bits.
    model.bytes = spotserve::ModelBytes::Transformer(m.layers, m.hidden, 50304, 2048, 4);
    inputs.models.push_back(std::move(model));
  }
  for (const Segment& s : kSegments) {
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(folder + s.file, kFileBytesMax));
    MR_ASSIGN_OR_RETURN(AvailabilityTrace trace, sim::ParseAvailability(text));
    inputs.traces.push_back(std::move(trace));
  }
  MR_ASSIGN_OR_RETURN(const std::string rates,
                      ReadFile(folder + "arrival-rates.csv", kFileBytesMax));
  std::stringstream stream(rates);
  for (std::string field; std::getline(stream, field, ',');) {
    const double rate = std::strtod(field.c_str(), nullptr);
    if (!(rate > 0)) return InvalidArgument("arrival-rates.csv: rates must be above zero");
    inputs.rates_by_minute.push_back(rate);
  }
  return inputs;
}

std::vector<double> ArrivalsFor(const Inputs& inputs, const Segment& segment,
                                const AvailabilityTrace& trace, const ModelCase& model,
                                const ArrivalSpec& spec) {
  if (!segment.by_minute) return spotserve::Arrivals(model.rate, trace.end_s - 30, spec);
  std::vector<double> rates = inputs.rates_by_minute;
  for (double& rate : rates) rate *= model.rate / kGptRate;
  return spotserve::ArrivalsByMinute(rates, trace.end_s - 30, spec);
}

// Continuous batching shares a pipeline's stages among lanes: twice the slots, as the paper's own
// space of batch sizes allows.
SpotModel ModelFor(const Inputs& inputs, size_t model, const Variant& variant) {
  SpotModel running = inputs.models[model];
  if (variant.batching == Batching::kContinuous) {
    running.space.batching = plan::spot::BatchRule::kContinuous;
    running.space.batch_max = 8;
  }
  return running;
}

Result<SpotReport> Simulate(const Inputs& inputs, size_t segment, size_t model,
                            const Variant& variant, const ArrivalSpec& spec, SpotCloud cloud) {
  const Segment& s = kSegments[segment];
  const ModelCase& m = kModels[model];
  AvailabilityTrace trace = inputs.traces[segment];
  const double scale = m.rate / kGptRate;
  for (auto& event : trace.events) {
    if (event.requests_per_s.has_value()) *event.requests_per_s *= scale;
  }
  cloud.on_demand_after_loss_s = s.on_demand_after_s;
  SpotOptions options{.system = variant.system, .batching = variant.batching};
  options.required_per_s = s.by_minute ? 0.6 * scale : m.required;
  options.controller.optimize = kOurs;
  const auto arrivals = ArrivalsFor(inputs, s, trace, m, spec);
  return SimulateSpot(ModelFor(inputs, model, variant), cloud, trace, arrivals, options);
}

// The mean over seeds; one seed is enough if arrivals hardly vary.
struct Averages {
  double mean_s = 0, p99_s = 0, usd = 0, held_usd = 0, usd_per_1e5_tokens = 0;
  Json details;  // of the first seed
};

Json Details(const SpotReport& r) {
  return {{"p50_s", r.p50_s},
          {"requests", r.requests},
          {"finished", r.finished},
          {"lost_steps", r.lost_steps},
          {"replayed_tokens", r.replayed_tokens},
          {"reconfigurations", r.reconfigurations},
          {"pause_s", r.pause_s},
          {"moved_gb", r.moved_bytes / 1e9},
          {"moved_kv_gb", r.moved_kv_bytes / 1e9},
          {"storage_gb", r.storage_bytes / 1e9}};
}

Result<Averages> Average(const Inputs& inputs, size_t segment, size_t model, const Variant& variant,
                         Spread spread, const SpotCloud& cloud) {
  const int seeds = spread == Spread::kGamma ? kGammaSeeds : 1;
  Averages average;
  for (int seed = 1; seed <= seeds; ++seed) {
    const ArrivalSpec spec{.spread = spread, .seed = static_cast<uint64_t>(seed)};
    MR_ASSIGN_OR_RETURN(const SpotReport r, Simulate(inputs, segment, model, variant, spec, cloud));
    if (r.finished != r.requests) {
      return Internal(fmt::format("{} of {} requests finished", r.finished, r.requests));
    }
    average.mean_s += r.mean_s / seeds;
    average.p99_s += r.p99_s / seeds;
    average.usd += r.usd / seeds;
    average.held_usd += r.held_usd / seeds;
    average.usd_per_1e5_tokens += r.usd_per_token * 1e5 / seeds;
    if (seed == 1) average.details = Details(r);
  }
  return average;
}

std::string Two(double mean, double p99) { return fmt::format("{:.1f} / {:.1f}", mean, p99); }

std::string Ratios(const double* p99) {
  return fmt::format("{:.2f} / {:.2f}", p99[0] / p99[2], p99[1] / p99[2]);
}

// Holds if both baselines are worse than SpotServe as published, by a similar factor.
std::string RatioVerdict(const double* paper, const double* ours) {
  std::string off;
  for (const int baseline : {0, 1}) {
    const double change = (ours[baseline] / ours[2]) / (paper[baseline] / paper[2]) - 1;
    off += fmt::format("{}{:+.0f} %", baseline == 0 ? "" : ", ", change * 100);
  }
  const bool order = ours[0] > ours[2] && ours[1] > ours[2];
  return fmt::format("{}: ratios {}", order ? "shape only" : "not reproduced", off);
}

// Adds one segment and model: a line per system, and a line of P99 ratios.
Status AddCell(const Inputs& inputs, size_t segment, size_t model, Spread spread,
               std::vector<Figure>& figures) {
  const bool shipped = spread == Spread::kAsPublished;
  const std::string cell = fmt::format("{}, {}, {}", kSegments[segment].name, kModels[model].name,
                                       shipped ? "shipped" : "Gamma CV 6");
  const Published* published = model == 1 && shipped && kSegments[segment].published
                                   ? &*kSegments[segment].published
                                   : nullptr;
  double mean[std::size(kVariants)], p99[std::size(kVariants)];
  for (size_t v = 0; v < std::size(kVariants); ++v) {
    MR_ASSIGN_OR_RETURN(Averages a, Average(inputs, segment, model, kVariants[v], spread, {}));
    mean[v] = a.mean_s;
    p99[v] = a.p99_s;
    Json paper;
    std::string verdict;
    if (v < 3 && published != nullptr) {
      paper = Two(published->mean[v], published->p99[v]);
      verdict =
          fmt::format("mean {:+.0f} %, P99 {:+.0f} %", (mean[v] / published->mean[v] - 1) * 100,
                      (p99[v] / published->p99[v] - 1) * 100);
    } else if (v >= 3) {
      verdict = fmt::format("against our SpotServe: mean {:+.0f} %, P99 {:+.0f} %",
                            (mean[v] / mean[2] - 1) * 100, (p99[v] / p99[2] - 1) * 100);
    }
    a.details.update({{"mean_s", a.mean_s},
                      {"p99_s", a.p99_s},
                      {"usd", a.usd},
                      {"usd_held", a.held_usd},
                      {"usd_per_1e5_tokens", a.usd_per_1e5_tokens}});
    figures.push_back({fmt::format("{}: {}", cell, kVariants[v].name), paper, Two(mean[v], p99[v]),
                       "s mean / P99", verdict, a.details});
  }
  figures.push_back({cell + ": P99 Reparallelization / SpotServe, Rerouting / SpotServe",
                     published != nullptr ? Json(Ratios(published->p99)) : Json(), Ratios(p99),
                     "times", published != nullptr ? RatioVerdict(published->p99, p99) : ""});
  return OkStatus();
}

// GPT-20B on on-demand machines. The released plot shifts its line by 4.5 s and 9 s; these are the
// numbers before the shift.
Status AddOnDemand(const Inputs& inputs, std::vector<Figure>& figures) {
  const struct {
    int nodes;
    double mean_s, p99_s;
  } kPublished[] = {
      {3, 141.482, 253.343}, {4, 98.037, 175.346}, {6, 29.146, 43.470}, {8, 24.623, 34.450}};
  constexpr double kMinutes = 18;
  for (const auto& p : kPublished) {
    const auto trace = sim::ConstantAvailability(p.nodes, kMinutes * 60);
    const auto arrivals = spotserve::Arrivals(kGptRate, trace.end_s, {});
    SpotCloud cloud;
    cloud.all_on_demand = true;
    MR_ASSIGN_OR_RETURN(const SpotReport r, SimulateSpot(inputs.models[1], cloud, trace, arrivals,
                                                         {.required_per_s = kModels[1].required}));
    figures.push_back({fmt::format("GPT-20B, {} on-demand machines: SpotServe", p.nodes),
                       Two(p.mean_s, p.p99_s),
                       Two(r.mean_s, r.p99_s),
                       "s mean / P99",
                       fmt::format("mean {:+.0f} %, P99 {:+.0f} %", (r.mean_s / p.mean_s - 1) * 100,
                                   (r.p99_s / p.p99_s - 1) * 100),
                       {{"usd_per_1e5_tokens", r.usd_per_token * 1e5}}});
  }
  return OkStatus();
}

// USD per 100,000 tokens on GPT-20B; the paper's from its charged minutes and a 44 to 51 % gain.
Status AddCost(const Inputs& inputs, std::vector<Figure>& figures) {
  const struct {
    size_t segment;
    double paper;
  } kPublished[] = {{0, 2.18}, {1, 1.90}};
  for (const auto& p : kPublished) {
    MR_ASSIGN_OR_RETURN(const Averages a,
                        Average(inputs, p.segment, 1, kVariants[2], Spread::kAsPublished, {}));
    figures.push_back({fmt::format("{}, GPT-20B: cost of SpotServe", kSegments[p.segment].name),
                       p.paper, a.usd_per_1e5_tokens, "USD per 1e5 tokens",
                       fmt::format("{:+.0f} %", (a.usd_per_1e5_tokens / p.paper - 1) * 100)});
  }
  return OkStatus();
}

// How the ratios depend on unpublished values: storage speed and engine start.
Status AddSensitivity(const Inputs& inputs, std::vector<Figure>& figures) {
  const struct {
    double storage_bytes_per_s, engine_start_s;
  } kAssumed[] = {{0.5e9, 5}, {2e9, 5}, {1e9, 0}, {1e9, 15}};
  for (const auto& assumed : kAssumed) {
    SpotCloud cloud;
    cloud.storage_bytes_per_s = assumed.storage_bytes_per_s;
    cloud.engine_start_s = assumed.engine_start_s;
    std::string ours;
    for (size_t segment = 0; segment < 4; ++segment) {
      double p99[3];
      for (size_t v = 0; v < 3; ++v) {
        MR_ASSIGN_OR_RETURN(const Averages a,
                            Average(inputs, segment, 1, kVariants[v], Spread::kAsPublished, cloud));
        p99[v] = a.p99_s;
      }
      ours += (segment == 0 ? "" : "; ") + Ratios(p99);
    }
    figures.push_back({fmt::format("GPT-20B, A_S; B_S; A_S+O; B_S+O: P99 ratios with storage at "
                                   "{} GB/s, engines starting in {} s",
                                   assumed.storage_bytes_per_s / 1e9, assumed.engine_start_s),
                       "1.33 / 1.11; 1.52 / 2.67; 1.34 / 1.04; 2.19 / 1.30", ours, "times",
                       "assumption varied"});
  }
  return OkStatus();
}

// The whole published g4dn availability trace, with true Gamma arrivals.
Status AddLongTrace(const Context& context, const Inputs& inputs, std::vector<Figure>& figures) {
  MR_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(context.data + "/spot/spotserve/g4dn_12h_full.csv", kFileBytesMax));
  MR_ASSIGN_OR_RETURN(const AvailabilityTrace trace, sim::ParseAvailability(text));
  const auto arrivals =
      spotserve::Arrivals(kGptRate, trace.end_s, {.spread = Spread::kGamma, .cv = 2});
  for (const Variant& variant : kVariants) {
    SpotOptions options{.system = variant.system, .batching = variant.batching};
    options.required_per_s = kModels[1].required;
    options.controller.optimize = kOurs;
    MR_ASSIGN_OR_RETURN(const SpotReport r,
                        SimulateSpot(ModelFor(inputs, 1, variant), {}, trace, arrivals, options));
    figures.push_back({fmt::format("g4dn 10.8 h, GPT-20B, Gamma CV 2: {}", variant.name),
                       {},
                       Two(r.mean_s, r.p99_s),
                       "s mean / P99",
                       fmt::format("{:.1f} USD for all machines, {:.1f} for those needed and two "
                                   "spares, {} changes",
                                   r.usd, r.held_usd, r.reconfigurations),
                       Details(r)});
  }
  return OkStatus();
}

Result<std::vector<Figure>> Run(const Context& context) {
  MR_ASSIGN_OR_RETURN(const Inputs inputs, Read(context));
  std::vector<Figure> figures;
  for (const Spread spread : {Spread::kAsPublished, Spread::kGamma}) {
    for (size_t segment = 0; segment < std::size(kSegments); ++segment) {
      for (size_t model = 0; model < std::size(kModels); ++model) {
        MR_RETURN_IF_ERROR(AddCell(inputs, segment, model, spread, figures));
      }
    }
  }
  MR_RETURN_IF_ERROR(AddOnDemand(inputs, figures));
  MR_RETURN_IF_ERROR(AddCost(inputs, figures));
  MR_RETURN_IF_ERROR(AddSensitivity(inputs, figures));
  MR_RETURN_IF_ERROR(AddLongTrace(context, inputs, figures));
  return figures;
}

}  // namespace

Experiment SpotTracesExperiment() {
  return {.name = "spot_traces",
          .title = "SpotServe: six traces, three models, against its baselines (section 6.2)",
          .quick = true,
          .run = Run};
}

}  // namespace millrace::experiments
