#include "apps/commands/bench_serve_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "apps/cli/parse.h"
#include "apps/commands/bench_serve_file.h"
#include "apps/commands/workload_flags.h"
#include "apps/common/slo_option.h"
#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr char kCompletionsPath[] = "/v1/completions";
constexpr char kChatPath[] = "/v1/chat/completions";

bool Contains(const std::string& list, std::string_view name) {
  const auto names = ParseMetricNames(list);
  return names.ok() && std::ranges::find(*names, name) != names->end();
}

// Names of headers are compared without case.
bool SameHeader(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const std::string* FindGivenHeader(const BenchServeFlags& flags, std::string_view name) {
  for (const auto& [key, value] : flags.headers) {
    if (SameHeader(key, name)) return &value;
  }
  return nullptr;
}

Status CheckHeaders(const BenchServeFlags& flags) {
  for (const auto& [name, value] : flags.headers) {
    constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
    const bool is_name = std::ranges::all_of(name, [&](unsigned char c) {
      return std::isalnum(c) != 0 || kMarks.find(static_cast<char>(c)) != std::string_view::npos;
    });
    const bool is_value =
        std::ranges::none_of(value, [](unsigned char c) { return c < ' ' || c == 127; });
    if (!is_name || !is_value) {
      return InvalidArgument(fmt::format("--header must be NAME=VALUE of an HTTP header, got '{}'",
                                         Printable(name + "=" + value)));
    }
    for (const char* own :
         {"host", "content-type", "content-length", "transfer-encoding", "connection", "expect"}) {
      if (SameHeader(name, own)) {
        return InvalidArgument(fmt::format("--header: '{}' follows from the request itself", name));
      }
    }
  }
  if (FindGivenHeader(flags, "authorization") != nullptr) {
    MR_RETURN_IF_ERROR(
        RefuseGiven(flags.given, {"api-key"}, "and --header Authorization say the same; give one"));
  }
  if (FindGivenHeader(flags, "x-request-id") != nullptr) {
    return RefuseGiven(flags.given, {"request-id-prefix"},
                       "and --header X-Request-Id say the same; give one");
  }
  return OkStatus();
}

Status CheckSampling(const BenchServeFlags& flags) {
  for (const auto& [name, value] : flags.extra_body.items()) {
    if (IsOwnField(name)) {
      return InvalidArgument(fmt::format(
          "--extra-body: '{}' follows from the other options; see --help", Printable(name)));
    }
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    if (name == "top_logprobs") option = "logprobs";
    if (flags.given.contains(option)) {
      return InvalidArgument(
          fmt::format("--{} is also in --extra-body; give one", Printable(option)));
    }
  }
  if (flags.sampling.params.temperature == 0 && !flags.extra_body.contains("temperature")) {
    return RefuseGiven(flags.given, {"top-p", "top-k", "min-p"},
                       "changes nothing at temperature 0: give --temperature T above 0");
  }
  return OkStatus();
}

Status CheckTraffic(const BenchServeFlags& flags) {
  const bool trace = flags.workload.dataset == DatasetName::kTrace;
  if (flags.ramp_shape) {
    if (!flags.ramp_start_rps || !flags.ramp_end_rps) {
      return InvalidArgument(
          "--ramp-up-strategy needs --ramp-up-start-rps RPS and --ramp-up-end-rps RPS");
    }
    if (*flags.ramp_start_rps > *flags.ramp_end_rps) {
      return InvalidArgument(fmt::format(
          "--ramp-up-start-rps {} is above --ramp-up-end-rps {}; the rate can only rise",
          *flags.ramp_start_rps, *flags.ramp_end_rps));
    }
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"request-rate"},
                                   "cannot be used with --ramp-up-strategy, which sets the rate"));
    if (trace) {
      return InvalidArgument("--ramp-up-strategy cannot be used with --dataset-name trace");
    }
    return OkStatus();
  }
  MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"ramp-up-start-rps", "ramp-up-end-rps"},
                                 "needs --ramp-up-strategy linear or exponential"));
  if (trace || std::isinf(flags.workload.request_rate)) {
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
  const bool texts = flags.workload.dataset == DatasetName::kCustom;
  if (texts) {
    MR_RETURN_IF_ERROR(
        RefuseGiven(flags.given, {"tokenizer"},
                    "makes texts of token ids, and --dataset-name custom has texts"));
  }
  if (flags.chat() && !texts && flags.tokenizer.empty()) {
    return InvalidArgument(
        "a chat needs texts, but this workload has token ids; give --tokenizer FOLDER, or use "
        "--endpoint /v1/completions or --dataset-name custom");
  }
  return CheckHeaders(flags);
}

Status CheckReport(const BenchServeFlags& flags) {
  if (flags.given.contains("slo")) {
    MR_RETURN_IF_ERROR(RefuseGiven(flags.given, {"goodput"}, "has the limits of --slo; give one"));
    MR_RETURN_IF_ERROR(CompleteSlo(flags.slo, {}).status());
  }
  if (!flags.max_concurrency) {
    for (const char* name : {kClientQueueTime, kE2elWithQueue}) {
      if (Contains(flags.percentile_metrics, name)) {
        return InvalidArgument(fmt::format(
            "--percentile-metrics {} is 0 without a limit: give --max-concurrency N", name));
      }
    }
  }
  if (flags.saves()) return CheckMetadata(flags);
  return RefuseGiven(flags.given,
                     {"save-detailed", "result-dir", "result-filename", "label", "metadata"},
                     "needs --save-result");
}

}  // namespace

bool BenchServeFlags::chat() const {
  return backend == Backend::kOpenAiChat || endpoint.ends_with(kChatPath);
}

Status ValidateBenchServe(const BenchServeFlags& flags) {
  MR_RETURN_IF_ERROR(ValidateWorkload(flags.workload, flags.given));
  MR_RETURN_IF_ERROR(CheckTraffic(flags));
  MR_RETURN_IF_ERROR(CheckServer(flags));
  MR_RETURN_IF_ERROR(CheckSampling(flags));
  return CheckReport(flags);
}

Result<net::Url> BaseUrlOf(const BenchServeFlags& flags) {
  if (!flags.base_url.empty()) return net::ParseUrl(flags.base_url);
  net::Url url;
  url.host = flags.host;
  url.port = static_cast<uint16_t>(flags.port);
  return url;
}

WorkloadOptions WorkloadOf(const BenchServeFlags& flags) {
  WorkloadOptions options = flags.workload;
  options.seed = static_cast<uint64_t>(flags.seed);
  if (flags.ramp_shape) {
    options.ramp_up = RampUp{*flags.ramp_shape, *flags.ramp_start_rps, *flags.ramp_end_rps};
  }
  return options;
}

Result<LoadTarget> TargetOf(const BenchServeFlags& flags) {
  LoadTarget target;
  MR_ASSIGN_OR_RETURN(const net::Url base, BaseUrlOf(flags));
  target.chat = flags.chat();
  target.url = base.Join(!flags.endpoint.empty() ? flags.endpoint
                         : target.chat           ? kChatPath
                                                 : kCompletionsPath);
  target.headers = flags.headers;
  std::string key = flags.api_key;
  if (const char* from_environment = std::getenv("OPENAI_API_KEY");
      key.empty() && from_environment != nullptr) {
    key = from_environment;
  }
  if (!key.empty() && FindGivenHeader(flags, "authorization") == nullptr) {
    target.headers.emplace_back("Authorization", "Bearer " + key);
  }
  target.request_id_prefix = flags.request_id_prefix;
  target.ignore_eos = flags.ignore_eos;
  target.logprobs = flags.logprobs;
  target.fields = ToFields(flags.sampling);
  target.fields.update(flags.extra_body);
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
