#include "sim/load/workload_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/suggest.h"
#include "plan/io/text_fields.h"
#include "plan/io/yaml_reader.h"

namespace millrace::sim {
namespace {

using plan::Quantity;
using plan::YamlMap;

constexpr int64_t kPrefixesMax = 1'000'000;
constexpr double kCvMin = 0.03, kCvMax = 30;

class WorkloadReader {
 public:
  WorkloadReader(std::string_view name, const FileReader& read) : name_(name), read_(read) {}

  Result<WorkloadSpec> Read(std::string_view text) {
    if (text.size() > kWorkloadFileBytesMax) {
      return InvalidArgument(
          fmt::format("{}: is larger than {} bytes", Printable(name_), kWorkloadFileBytesMax));
    }
    MR_ASSIGN_OR_RETURN(const YAML::Node root, plan::LoadYaml(text, name_));
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(root, "a workload",
                                      {"trace", "arrivals", "rate", "rates", "requests", "duration",
                                       "lengths", "prefixes", "phases", "clients", "slo"},
                                      name_));
    MR_ASSIGN_OR_RETURN(spec_.rate, map.AmountIf("rate", Quantity::kRate));
    MR_ASSIGN_OR_RETURN(spec_.duration_s, map.AmountIf("duration", Quantity::kDuration));
    if (map.Has("requests")) {
      MR_ASSIGN_OR_RETURN(const int64_t n, map.Integer("requests", 1, kWorkloadRequestsMax));
      spec_.requests = static_cast<uint64_t>(n);
    }
    MR_RETURN_IF_ERROR(map.Has("trace")     ? ReadTrace(map)
                       : map.Has("phases")  ? ReadPhases(map)
                       : map.Has("clients") ? ReadClients(map)
                                            : ReadSynthetic(map));
    if (map.Has("slo")) {
      MR_ASSIGN_OR_RETURN(const YAML::Node slo, map.Need("slo"));
      MR_RETURN_IF_ERROR(ReadSlo(slo));
    }
    const Status valid = spec_.Validate();
    if (!valid.ok()) return plan::ErrorAt(name_, root, valid.message());
    return std::move(spec_);
  }

 private:
  Result<std::vector<TraceEntry>> TraceAt(const YamlMap& map) {
    MR_ASSIGN_OR_RETURN(const std::string path, map.Text("trace"));
    const auto text = read_(path);
    if (!text.ok()) return map.Error("trace", text.status().message());
    auto entries = ParseTrace(*text, kWorkloadRequestsMax);
    if (!entries.ok()) {
      return map.Error("trace", Printable(path) + ": " + entries.status().message());
    }
    return entries;
  }

  // {every: 1 h, values: [2 req/s, 9 req/s]}, or {every: 1 min, file: arrival-rates.csv}.
  Status ReadRates(const YamlMap& parent) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, parent.Need("rates"));
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "rates", {"every", "values", "file"}, name_));
    MR_ASSIGN_OR_RETURN(const double every_s, map.Amount("every", Quantity::kDuration));
    if (map.Has("values") == map.Has("file")) {
      return plan::ErrorAt(name_, node, "rates come from values or from a file; give one of them");
    }
    std::vector<double> rates;
    if (map.Has("file")) {
      MR_ASSIGN_OR_RETURN(rates, RatesAt(map));
    } else {
      MR_ASSIGN_OR_RETURN(const auto values, map.Texts("values", kRatesMax));
      for (const std::string& value : values) {
        const auto rate = plan::ParseQuantity(Quantity::kRate, value);
        if (!rate.ok()) return map.Error("values", "a rate " + rate.status().message());
        rates.push_back(*rate);
      }
    }
    double mean = 0;
    auto shape = ShapeOf(std::move(rates), every_s, mean);
    if (!shape.ok()) {
      return map.Error(map.Has("file") ? "file" : "values", shape.status().message());
    }
    spec_.shape = std::move(*shape);
    if (!spec_.rate) spec_.rate = mean;
    if (spec_.arrivals != ArrivalKind::kAllAtOnce) return OkStatus();
    return plan::ErrorAt(name_, node, "requests that come all at once have no rates");
  }

  Result<std::vector<double>> RatesAt(const YamlMap& map) {
    MR_ASSIGN_OR_RETURN(const std::string path, map.Text("file"));
    const auto text = read_(path);
    if (!text.ok()) return map.Error("file", text.status().message());
    auto rates = ParseRates(*text);
    if (!rates.ok()) return map.Error("file", Printable(path) + ": " + rates.status().message());
    return rates;
  }

  Status ReadTrace(const YamlMap& map) {
    spec_.arrivals = ArrivalKind::kTrace;
    for (const char* key : {"arrivals", "lengths", "prefixes", "rates", "phases", "clients"}) {
      if (map.Has(key)) {
        return map.Error(key,
                         fmt::format("a trace has its own {}; leave out {} or trace", key, key));
      }
    }
    MR_ASSIGN_OR_RETURN(spec_.trace, TraceAt(map));
    return OkStatus();
  }

  // [{duration: 10 min, rate: 2 req/s, lengths: {...}}, ...]. What a phase does not say is as the
  // file says it for all.
  Status ReadPhases(const YamlMap& map) {
    for (const char* key : {"rates", "duration", "clients"}) {
      if (!map.Has(key)) continue;
      return map.Error(key, fmt::format("phases do not go with {}; leave it out", key));
    }
    WorkloadReader common(name_, read_);
    MR_RETURN_IF_ERROR(common.ReadCommon(map, spec_.rate));
    MR_ASSIGN_OR_RETURN(const auto nodes, map.List("phases", kWorkloadPhasesMax));
    if (nodes.empty()) return map.Error("phases", "phases must be a list of at least one phase");
    double requests = 0, seconds = 0;
    for (const YAML::Node& node : nodes) {
      WorkloadReader phase(name_, read_);
      phase.spec_ = common.spec_;
      MR_RETURN_IF_ERROR(phase.ReadPhase(node, map.Has("lengths")));
      requests += *phase.spec_.rate * *phase.spec_.duration_s;
      seconds += *phase.spec_.duration_s;
      spec_.phases.push_back(std::move(phase.spec_));
    }
    spec_.rate = requests / seconds;
    spec_.duration_s = seconds;
    return OkStatus();
  }

  // What applies to every phase or client that does not say otherwise.
  Status ReadCommon(const YamlMap& map, std::optional<double> rate) {
    spec_.rate = rate;
    MR_RETURN_IF_ERROR(ReadOwn(map));
    return map.Has("prefixes") ? ReadPrefixes(map) : OkStatus();
  }

  // [{name: batch, rate: 20 req/s, lengths: {...}}, ...], all at the same time.
  Status ReadClients(const YamlMap& map) {
    if (map.Has("rates")) return map.Error("rates", "clients do not go with rates; leave it out");
    WorkloadReader common(name_, read_);
    MR_RETURN_IF_ERROR(common.ReadCommon(map, spec_.rate));
    MR_ASSIGN_OR_RETURN(const auto nodes, map.List("clients", kWorkloadClientsMax));
    if (nodes.empty()) return map.Error("clients", "clients must be a list of at least one client");
    spec_.rate = 0;
    for (const YAML::Node& node : nodes) {
      WorkloadReader client(name_, read_);
      client.spec_ = common.spec_;
      MR_RETURN_IF_ERROR(client.ReadClient(node, map.Has("lengths")));
      *spec_.rate += *client.spec_.rate;
      spec_.clients.push_back(std::move(client.spec_));
    }
    return OkStatus();
  }

  Status ReadClient(const YAML::Node& node, bool has_lengths) {
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(node, "a client", {"name", "arrivals", "rate", "lengths"}, name_));
    MR_ASSIGN_OR_RETURN(spec_.name, map.Text("name"));
    return ReadPart(map, has_lengths);
  }

  Status ReadPhase(const YAML::Node& node, bool has_lengths) {
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(node, "a phase", {"duration", "arrivals", "rate", "lengths"}, name_));
    MR_ASSIGN_OR_RETURN(spec_.duration_s, map.Amount("duration", Quantity::kDuration));
    return ReadPart(map, has_lengths);
  }

  Status ReadPart(const YamlMap& map, bool has_lengths) {
    if (map.Has("rate") || !spec_.rate) {
      MR_ASSIGN_OR_RETURN(spec_.rate, map.Amount("rate", Quantity::kRate));
    }
    if (!has_lengths) MR_RETURN_IF_ERROR(map.Need("lengths").status());
    return ReadOwn(map);
  }

  // What a file, and each of its phases or clients, may say.
  Status ReadOwn(const YamlMap& map) {
    if (map.Has("arrivals")) {
      MR_ASSIGN_OR_RETURN(const YAML::Node arrivals, map.Need("arrivals"));
      spec_.arrivals = ArrivalKind::kGamma;
      spec_.cv = 1;
      MR_RETURN_IF_ERROR(ReadArrivals(arrivals));
      if (spec_.arrivals == ArrivalKind::kAllAtOnce) {
        return map.Error("arrivals", "the requests of a phase or client cannot come all at once");
      }
    }
    if (!map.Has("lengths")) return OkStatus();
    MR_ASSIGN_OR_RETURN(const YAML::Node lengths, map.Need("lengths"));
    spec_.lengths.clear();
    return ReadLengths(lengths);
  }

  Status ReadSynthetic(const YamlMap& map) {
    MR_ASSIGN_OR_RETURN(const YAML::Node arrivals, map.Need("arrivals"));
    MR_RETURN_IF_ERROR(ReadArrivals(arrivals));
    if (map.Has("rates")) MR_RETURN_IF_ERROR(ReadRates(map));
    MR_ASSIGN_OR_RETURN(const YAML::Node lengths, map.Need("lengths"));
    MR_RETURN_IF_ERROR(ReadLengths(lengths));
    return map.Has("prefixes") ? ReadPrefixes(map) : OkStatus();
  }

  // {count: 20, length: 512 tokens}
  Status ReadPrefixes(const YamlMap& parent) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, parent.Need("prefixes"));
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "prefixes", {"count", "length"}, name_));
    MR_ASSIGN_OR_RETURN(const int64_t count, map.Integer("count", 1, kPrefixesMax));
    MR_ASSIGN_OR_RETURN(const double tokens, Tokens(map, "length"));
    if (tokens > kTraceTokensMax) {
      return map.Error("length", fmt::format("length must be at most {} tokens", kTraceTokensMax));
    }
    spec_.prefixes = {static_cast<int>(count), static_cast<int>(tokens)};
    return OkStatus();
  }

  Status ReadArrivals(const YAML::Node& node) {
    if (node.IsScalar()) {
      static const std::vector<std::string> kNames = {"poisson", "steady", "at-once"};
      const std::string& text = node.Scalar();
      if (text == "poisson") return OkStatus();
      if (text == "steady" || text == "at-once") {
        spec_.arrivals = text == "steady" ? ArrivalKind::kSteady : ArrivalKind::kAllAtOnce;
        return OkStatus();
      }
      const auto guess = Suggest(text, kNames);
      return plan::ErrorAt(
          name_, node,
          fmt::format(
              "arrivals must be poisson, steady, at-once or {{gamma: {{cv: 2}}}}, got '{}'{}",
              Printable(text, 60), guess ? "; did you mean " + *guess + "?" : ""));
    }
    MR_ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Open(node, "arrivals", {"gamma"}, name_));
    MR_ASSIGN_OR_RETURN(const YAML::Node gamma_node, map.Need("gamma"));
    MR_ASSIGN_OR_RETURN(const YamlMap gamma, YamlMap::Open(gamma_node, "gamma", {"cv"}, name_));
    MR_ASSIGN_OR_RETURN(const std::string text, gamma.Text("cv"));
    const auto cv = plan::NumberIn(text);
    if (!cv || *cv < kCvMin || *cv > kCvMax) {
      return gamma.Error("cv", fmt::format("cv must be a number in [{}, {}], got '{}'", kCvMin,
                                           kCvMax, Printable(text, 60)));
    }
    spec_.cv = *cv;
    return OkStatus();
  }

  Status ReadLengths(const YAML::Node& node) {
    MR_ASSIGN_OR_RETURN(
        const YamlMap map,
        YamlMap::Open(node, "lengths", {"prompt", "output", "trace", "order"}, name_));
    if (map.Has("trace")) return ReadLengthsOfTrace(map);
    if (map.Has("order")) return map.Error("order", "order applies only to lengths of a trace");
    MR_ASSIGN_OR_RETURN(spec_.prompt, ReadLength(map, "prompt"));
    MR_ASSIGN_OR_RETURN(spec_.output, ReadLength(map, "output"));
    return OkStatus();
  }

  Status ReadLengthsOfTrace(const YamlMap& map) {
    for (const char* key : {"prompt", "output"}) {
      if (map.Has(key)) {
        return map.Error(key,
                         fmt::format("lengths come from the trace; leave out {} or trace", key));
      }
    }
    MR_ASSIGN_OR_RETURN(const std::string order, map.TextOr("order", "random"));
    if (order != "random" && order != "in-turn") {
      return map.Error(
          "order", fmt::format("order must be random or in-turn, got '{}'", Printable(order, 60)));
    }
    spec_.draw_lengths = order == "random";
    MR_ASSIGN_OR_RETURN(const auto entries, TraceAt(map));
    for (const TraceEntry& e : entries) {
      spec_.lengths.push_back({std::max(e.input_tokens, 1), std::max(e.output_tokens, 1)});
    }
    return OkStatus();
  }

  // Reads a whole number of tokens, at least one.
  Result<double> Tokens(const YamlMap& map, std::string_view key) {
    MR_ASSIGN_OR_RETURN(const double tokens, map.Amount(key, Quantity::kTokens));
    if (tokens >= 1 && tokens == std::floor(tokens)) return tokens;
    return map.Error(key, fmt::format("{} must be a whole number of tokens, at least 1, got '{:g}'",
                                      key, tokens));
  }

  Result<LengthSpec> ReadLength(const YamlMap& parent, std::string_view what) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, parent.Need(what));
    LengthSpec spec;
    spec.limit = kTraceTokensMax;
    if (node.IsScalar()) {
      MR_ASSIGN_OR_RETURN(spec.a, Tokens(parent, what));
      return spec;
    }
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, what, {"uniform", "lognormal"}, name_));
    if (map.Has("uniform") == map.Has("lognormal")) {
      return plan::ErrorAt(
          name_, node,
          fmt::format("{} must be a length such as 512 tokens, or uniform, or lognormal", what));
    }
    return map.Has("uniform") ? ReadUniform(map, spec) : ReadLognormal(map, spec);
  }

  Result<LengthSpec> ReadUniform(const YamlMap& parent, LengthSpec spec) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, parent.Need("uniform"));
    MR_ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Open(node, "uniform", {"min", "max"}, name_));
    spec.kind = LengthSpec::Kind::kUniform;
    MR_ASSIGN_OR_RETURN(spec.a, Tokens(map, "min"));
    MR_ASSIGN_OR_RETURN(spec.b, Tokens(map, "max"));
    if (spec.a <= spec.b) return spec;
    return map.Error("max", fmt::format("max ({:g}) must be at least min ({:g})", spec.b, spec.a));
  }

  Result<LengthSpec> ReadLognormal(const YamlMap& parent, LengthSpec spec) {
    MR_ASSIGN_OR_RETURN(const YAML::Node node, parent.Need("lognormal"));
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "lognormal", {"mean", "sd", "max"}, name_));
    spec.kind = LengthSpec::Kind::kLognormal;
    MR_ASSIGN_OR_RETURN(spec.a, map.Amount("mean", Quantity::kTokens));
    MR_ASSIGN_OR_RETURN(spec.b, map.Amount("sd", Quantity::kTokens));
    if (spec.a < 1) return map.Error("mean", "mean must be at least 1 tokens");
    if (!map.Has("max")) return spec;
    MR_ASSIGN_OR_RETURN(const double limit, Tokens(map, "max"));
    spec.limit = static_cast<int>(limit);
    if (limit >= spec.a) return spec;
    return map.Error("max", fmt::format("max ({:g}) must be at least mean ({:g})", limit, spec.a));
  }

  // A limit is a time that each request must keep, so a percentile is refused.
  Status ReadLimit(const YamlMap& slo, const char* key, std::optional<double>& limit_s) {
    if (!slo.Has(key)) return OkStatus();
    MR_ASSIGN_OR_RETURN(const YAML::Node node, slo.Need(key));
    if (!node.IsScalar()) {
      return slo.Error(key, fmt::format("{} must be one time per request, such as 250 ms; give the "
                                        "share of requests as attainment, such as 99 %",
                                        key));
    }
    MR_ASSIGN_OR_RETURN(limit_s, slo.AmountIf(key, Quantity::kDuration));
    return OkStatus();
  }

  Status ReadSlo(const YAML::Node& node) {
    MR_ASSIGN_OR_RETURN(const YamlMap map,
                        YamlMap::Open(node, "slo", {"ttft", "tpot", "attainment"}, name_));
    LatencyLimits& limits = spec_.limits;
    MR_RETURN_IF_ERROR(ReadLimit(map, "ttft", limits.ttft_s));
    MR_RETURN_IF_ERROR(ReadLimit(map, "tpot", limits.tpot_s));
    if (!limits.any()) {
      return plan::ErrorAt(name_, node, "slo must limit ttft or tpot, such as {ttft: 250 ms}");
    }
    MR_ASSIGN_OR_RETURN(limits.attainment, map.AmountIf("attainment", Quantity::kShare));
    return OkStatus();
  }

  const std::string_view name_;
  const FileReader& read_;
  WorkloadSpec spec_;
};

}  // namespace

Result<WorkloadSpec> ParseWorkloadYaml(std::string_view text, std::string_view name,
                                       const FileReader& read) {
  return WorkloadReader(name, read).Read(text);
}

Result<WorkloadSpec> LoadWorkload(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kWorkloadFileBytesMax));
  const auto folder = std::filesystem::path(path).parent_path();
  return ParseWorkloadYaml(text, path, [&folder](const std::string& trace) {
    return ReadFile((folder / trace).string(), kTraceBytesMax);
  });
}

}  // namespace millrace::sim
