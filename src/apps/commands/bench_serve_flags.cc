#include "apps/commands/bench_serve_flags.h"

#include <cmath>
#include <cstdlib>

#include "apps/cli/parse.h"
#include "apps/commands/workload_flags.h"
#include "apps/common/slo_option.h"

namespace millrace::apps {
namespace {

Status CheckTraffic(const BenchServeFlags& flags) {
  if (flags.workload.dataset == DatasetName::kTrace || std::isinf(flags.workload.request_rate)) {
    return RefuseGiven(flags.given, {"burstiness"},
                       "needs random arrivals: give a finite --request-rate, and not "
                       "--dataset-name trace");
  }
  return OkStatus();
}

Status CheckServer(const BenchServeFlags& flags) {
  if (!flags.base_url.empty()) {
    MR_RETURN_IF_ERROR(
        RefuseGiven(flags.given, {"host", "port"}, "cannot be used with --base-url"));
    MR_RETURN_IF_ERROR(net::ParseUrl(flags.base_url).status().WithContext("--base-url"));
  }
  if (flags.chat() && flags.workload.dataset != DatasetName::kCustom) {
    return InvalidArgument(
        "a chat needs texts, but this workload has token ids; use --endpoint /v1/completions or "
        "--dataset-name custom");
  }
  return OkStatus();
}

Status CheckReport(const BenchServeFlags& flags) {
  if (flags.given.contains("slo")) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"goodput"}, "has the limits of --slo; give one"));
    MR_RETURN_IF_ERROR(CompleteSlo(flags.slo, {}).status());
  }
  if (flags.save_result) return OkStatus();
  return RefuseGiven(flags.given, {"save-detailed", "result-dir", "result-filename"},
                     "needs --save-result");
}

}  // namespace

bool BenchServeFlags::chat() const { return endpoint.ends_with("/v1/chat/completions"); }

Status ValidateBenchServe(const BenchServeFlags& flags) {
  MR_RETURN_IF_ERROR(ValidateWorkload(flags.workload, flags.given));
  MR_RETURN_IF_ERROR(CheckTraffic(flags));
  MR_RETURN_IF_ERROR(CheckServer(flags));
  return CheckReport(flags);
}

Result<net::Url> BaseUrlOf(const BenchServeFlags& flags) {
  if (!flags.base_url.empty()) return net::ParseUrl(flags.base_url);
  net::Url url;
  url.host = flags.host;
  url.port = static_cast<uint16_t>(flags.port);
  return url;
}

Result<LoadTarget> TargetOf(const BenchServeFlags& flags) {
  LoadTarget target;
  MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
  target.chat = flags.chat();
  target.url = base.Join(flags.endpoint);
  std::string key = flags.api_key;
  if (const char* from_environment = std::getenv("OPENAI_API_KEY");
      key.empty() && from_environment != nullptr) {
    key = from_environment;
  }
  if (!key.empty()) target.headers.emplace_back("Authorization", "Bearer " + key);
  target.ignore_eos = flags.ignore_eos;
  return target;
}

Result<ReportOptions> ReportOptionsOf(const BenchServeFlags& flags) {
  ReportOptions options;
  options.max_concurrency = flags.max_concurrency;
  options.request_rate = flags.workload.request_rate;
  options.orca = flags.workload.dataset == DatasetName::kOrca;
  options.goodput = flags.goodput;
  if (flags.slo.any()) options.goodput.limits = flags.slo;
  MR_ASSIGN_OR_RETURN(options.metrics, ParseMetricNames(flags.percentile_metrics));
  MR_ASSIGN_OR_RETURN(options.percentiles, ParsePercentiles(flags.metric_percentiles));
  return options;
}

}  // namespace millrace::apps
