// Parses a step log, which is untrusted text.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/json.h"
#include "base/text_lines.h"
#include "sched/beam_search.h"
#include "sched/step_log.h"

namespace millrace::sched {
namespace {

// Reads fields of one line; remembers the first error.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename T>
  T Get(const char* key, T fallback = {}) {
    const auto found = object_.find(key);
    if (found == object_.end()) return fallback;
    return As<T>(*found, key);
  }
  template <typename T>
  std::optional<T> Optional(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return std::nullopt;
    return As<T>(*found, key);
  }
  bool Has(const char* key) const { return object_.contains(key); }
  Time At() { return Time{Get<int64_t>("t")}; }
  const Status& status() const { return status_; }
  void Refuse(std::string_view key) {
    if (status_.ok())
      status_ = InvalidArgument(fmt::format("\"{}\" has a wrong type or value", key));
  }

 private:
  template <typename T>
  T As(const Json& value, const char* key) {
    if constexpr (std::is_same_v<T, bool>) {
      if (value.is_boolean()) return value.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      if (value.is_number_integer()) {
        const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                     : std::in_range<T>(value.get<int64_t>());
        if (fits) return value.get<T>();
      }
    } else if constexpr (std::is_floating_point_v<T>) {
      if (value.is_number()) return value.get<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (value.is_string()) return value.get<std::string>();
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      const bool all = value.is_array() &&
                       std::ranges::all_of(value, [](const Json& v) { return v.is_number(); });
      if (all) return value.get<T>();
    } else {  // a list of token or block ids
      const bool all = value.is_array() && std::ranges::all_of(value, [](const Json& v) {
                         return v.is_number_integer() && v.get<int64_t>() >= 0 &&
                                v.get<int64_t>() <= std::numeric_limits<int32_t>::max();
                       });
      if (all) return value.get<T>();
    }
    Refuse(key);
    return {};
  }

  const Json& object_;
  Status status_;
};

template <typename Enum>
Enum EnumOf(Fields& fields, const char* key, Enum last) {
  const int value = fields.Get<int>(key);
  if (value < 0 || value > static_cast<int>(last)) fields.Refuse(key);
  return static_cast<Enum>(value);
}

Result<SchedulerOptions> ParseOptions(const Json& object) {
  Fields f(object);
  SchedulerOptions o;
  o.block_size = f.Get<int>("block_size");
  o.num_blocks = f.Get<int>("num_blocks");
  o.num_host_blocks = f.Get<int>("num_host_blocks");
  o.max_num_seqs = f.Get<int>("max_num_seqs");
  o.max_num_batched_tokens = f.Get<int>("max_num_batched_tokens");
  o.max_model_len = f.Get<int>("max_model_len");
  o.max_waiting = f.Get<int>("max_waiting");
  o.stages = f.Get<int>("stages");
  o.even_steps = f.Get<bool>("even_steps");
  o.policy = EnumOf(f, "policy", SchedulingPolicy::kFair);
  o.kv_policy = EnumOf(f, "kv_policy", KvPolicy::kOrcaOracle);
  o.step_mix = EnumOf(f, "step_mix", StepMix::kPrefillFirst);
  o.preemption = EnumOf(f, "preemption", PreemptionMode::kAuto);
  o.prefix_caching = f.Get<bool>("prefix_caching");
  o.prefix_eviction = f.Get<std::string>("prefix_eviction", o.prefix_eviction);
  o.watermark = f.Get<double>("watermark");
  o.watchdog = Duration{f.Get<int64_t>("watchdog_ns")};
  o.eos_token_ids = f.Get<std::vector<TokenId>>("eos_token_ids");
  o.cache_identity = f.Get<std::string>("cache_identity");
  MR_RETURN_IF_ERROR(f.status());
  return o;
}

Result<PreemptionCosts> ParseCosts(const Json& object) {
  Fields f(object);
  const PreemptionCosts costs{.prefill_tokens_per_s = f.Get<double>("prefill_tokens_per_s"),
                              .swap_bytes_per_s = f.Get<double>("swap_bytes_per_s"),
                              .swap_block_overhead_s = f.Get<double>("swap_block_overhead_s"),
                              .kv_bytes_per_block = f.Get<int64_t>("kv_bytes_per_block")};
  MR_RETURN_IF_ERROR(f.status());
  return costs;
}

Result<std::vector<ResumedSequence>> ParseResumed(const Json& line) {
  std::vector<ResumedSequence> resumed;
  const auto found = line.find("resumed");
  if (found == line.end()) return resumed;
  const bool ok = found->is_array() && std::ssize(*found) <= kSequencesPerRequestMax &&
                  std::ranges::all_of(*found, [](const Json& s) { return s.is_object(); });
  if (!ok) return InvalidArgument("\"resumed\" must be a list of sequences");
  for (const Json& sequence : *found) {
    Fields f(sequence);
    resumed.push_back({f.Get<std::vector<TokenId>>("output"), f.Get<bool>("finished")});
    MR_RETURN_IF_ERROR(f.status());
  }
  return resumed;
}

Result<std::shared_ptr<const BeamState>> ParseBeams(const Json& line) {
  const auto found = line.find("beams");
  if (found == line.end()) return std::shared_ptr<const BeamState>();
  if (!found->is_object()) return InvalidArgument("\"beams\" must be an object");
  Fields f(*found);
  auto state = std::make_shared<BeamState>();
  for (const double logprob : f.Get<std::vector<double>>("logprobs")) {
    state->beams.push_back({logprob, {}});
  }
  MR_RETURN_IF_ERROR(f.status());
  const auto answers = found->find("answers");
  if (answers == found->end() || !answers->is_array()) {
    return InvalidArgument("\"answers\" must be a list");
  }
  for (const Json& answer : *answers) {
    if (!answer.is_object()) return InvalidArgument("\"answers\" must hold objects");
    Fields a(answer);
    state->answers.push_back(
        {a.Get<std::vector<TokenId>>("tokens"),
         {},
         a.Get<double>("score"),
         a.Get<bool>("stopped") ? FinishReason::kStop : FinishReason::kLength});
    MR_RETURN_IF_ERROR(a.status());
  }
  return std::shared_ptr<const BeamState>(std::move(state));
}

Result<std::optional<RequestTimes>> ParseTimes(const Json& line) {
  const auto found = line.find("times");
  if (found == line.end()) return std::optional<RequestTimes>();
  if (!found->is_object()) return InvalidArgument("\"times\" must be an object");
  Fields f(*found);
  const auto at = [&f](const char* key) {
    const auto ns = f.Optional<int64_t>(key);
    return ns ? std::optional(Time{*ns}) : std::nullopt;
  };
  const RequestTimes times{.arrived = Time{f.Get<int64_t>("arrived")},
                           .first_scheduled = at("first_scheduled"),
                           .last_scheduled = at("last_scheduled"),
                           .first_token = at("first_token"),
                           .last_token = at("last_token"),
                           .held = Duration{f.Optional<int64_t>("held").value_or(0)},
                           .transferred = Duration{f.Optional<int64_t>("transferred").value_or(0)}};
  MR_RETURN_IF_ERROR(f.status());
  return std::optional(times);
}

// The parameters that affect decisions. One that is missing keeps its default.
struct ParamsParser {
  template <typename T>
  void operator()(const SamplingField& field, T& value) {
    if (field.schedules) Read(field.name, value);
  }
  template <typename T>
  void Read(const char* name, T& value) {
    value = fields.Get<T>(name, value);
  }
  template <typename T>
  void Read(const char* name, std::optional<T>& value) {
    value = fields.Optional<T>(name);
  }
  void Read(const char* name, Pooling& value) {
    if (fields.Has(name)) value = EnumOf(fields, name, Pooling::kMean);
  }

  Fields& fields;
};

Result<LogEntry> ParseAdd(const Json& line) {
  static const Json kEmpty = Json::object();
  const auto params_at = line.find("params");
  const bool has_params = params_at != line.end() && params_at->is_object();
  Fields f(line), p(has_params ? *params_at : kEmpty);
  auto params = std::make_shared<SamplingParams>();
  ForEachField(*params, ParamsParser{p});
  if (params->n < 1 || params->n > kSequencesPerRequestMax) p.Refuse("n");
  LoggedAdd add{.at = f.At()};
  add.request.id = RequestId(f.Get<uint64_t>("add"));
  add.request.prompt =
      std::make_shared<const std::vector<TokenId>>(f.Get<std::vector<TokenId>>("prompt"));
  add.request.params = std::move(params);
  add.request.seed = f.Get<uint64_t>("seed");
  add.request.priority = f.Get<int>("priority");
  add.request.cache_salt = f.Get<std::string>("cache_salt");
  MR_ASSIGN_OR_RETURN(add.request.resumed, ParseResumed(line));
  add.request.client = f.Get<std::string>("client");
  MR_ASSIGN_OR_RETURN(add.request.beams, ParseBeams(line));
  MR_ASSIGN_OR_RETURN(add.request.times, ParseTimes(line));
  add.request.cached_prompt_tokens = f.Get<int>("cached_prompt_tokens");
  add.request.imported_tokens = f.Get<std::vector<int>>("imported_tokens");
  add.request.import_open = f.Get<bool>("import_open");
  add.request.stop_after_prompt = f.Get<bool>("stop_after_prompt");
  if (const auto hold_ns = f.Optional<int64_t>("hold_kv_ns")) {
    add.request.hold_kv = Duration{*hold_ns};
  }
  add.request.known_output_tokens = f.Optional<int>("known_output_tokens");
  MR_RETURN_IF_ERROR(f.status());
  MR_RETURN_IF_ERROR(p.status());
  return LogEntry(std::move(add));
}

Result<LogEntry> ParseStep(const Json& line) {
  Fields f(line);
  LoggedStep step{.at = f.At(), .id = StepId(f.Get<uint64_t>("step"))};
  step.blocks = f.Get<std::vector<BlockIndex>>("blocks");
  const auto moved = f.Get<std::vector<int>>("moved");
  if (moved.size() != 3) return InvalidArgument("\"moved\" must be three counts");
  step.swapped_out = moved[0];
  step.swapped_in = moved[1];
  step.copied = moved[2];
  MR_RETURN_IF_ERROR(f.status());
  const auto parts = line.find("parts");
  if (parts == line.end() || !parts->is_array()) return InvalidArgument("\"parts\" must be a list");
  for (const Json& part : *parts) {
    const bool ok = part.is_array() && part.size() == 3 &&
                    std::ranges::all_of(part, [](const Json& v) { return v.is_number_unsigned(); });
    if (!ok) return InvalidArgument("\"parts\" must hold [sequence, start, tokens]");
    step.parts.push_back(
        {SequenceId(part[0].get<uint64_t>()), part[1].get<int32_t>(), part[2].get<int32_t>()});
  }
  return LogEntry(std::move(step));
}

Result<std::vector<std::vector<TokenLogprob>>> ParseCandidates(const Json& line, size_t parts) {
  std::vector<std::vector<TokenLogprob>> candidates;
  const auto found = line.find("candidates");
  if (found == line.end()) return candidates;
  const Status wrong =
      InvalidArgument("\"candidates\" must be a list of [token, log-probability] for each part");
  if (!found->is_array() || found->size() != parts) return wrong;
  for (const Json& part : *found) {
    if (!part.is_array()) return wrong;
    std::vector<TokenLogprob>& of_part = candidates.emplace_back();
    for (const Json& c : part) {
      const bool ok =
          c.is_array() && c.size() == 2 && c[0].is_number_unsigned() && c[1].is_number();
      if (!ok) return wrong;
      of_part.push_back({c[0].get<TokenId>(), c[1].get<float>(), 0});
    }
  }
  return candidates;
}

Result<LogEntry> ParseCommit(const Json& line) {
  Fields f(line);
  LoggedCommit commit{.at = f.At(), .id = StepId(f.Get<uint64_t>("commit"))};
  MR_RETURN_IF_ERROR(f.status());
  const auto tokens = line.find("tokens");
  if (tokens == line.end() || !tokens->is_array()) {
    return InvalidArgument("\"tokens\" must be a list");
  }
  for (const Json& token : *tokens) {
    if (token.is_null()) {
      commit.tokens.push_back(std::nullopt);
    } else if (token.is_number_integer()) {
      commit.tokens.push_back(token.get<TokenId>());
    } else {
      return InvalidArgument("\"tokens\" must hold token ids and nulls");
    }
  }
  MR_ASSIGN_OR_RETURN(commit.candidates, ParseCandidates(line, commit.tokens.size()));
  return LogEntry(std::move(commit));
}

// Entries about requests that come from, or leave for, another scheduler.
Result<std::optional<LogEntry>> ParseHandOver(const Json& line) {
  Fields f(line);
  std::optional<LogEntry> entry;
  if (line.contains("kv_arrived")) {
    LoggedKvArrival arrival{f.At(), RequestId(f.Get<uint64_t>("kv_arrived")),
                            f.Get<bool>("complete")};
    if (const auto layers = f.Optional<std::vector<int>>("lacking")) {
      if (layers->size() != 2) return InvalidArgument("\"lacking\" must hold two layers");
      arrival.lacking = LayerRange{layers->front(), layers->back()};
    }
    entry = arrival;
  } else if (line.contains("kv_release")) {
    entry = LoggedKvRelease{RequestId(f.Get<uint64_t>("kv_release"))};
  } else if (line.contains("hold_extended")) {
    entry = LoggedHoldExtension{f.At(), RequestId(f.Get<uint64_t>("hold_extended")),
                                Duration{f.Get<int64_t>("hold_kv_ns")}};
  } else if (line.contains("kv_extended")) {
    MR_ASSIGN_OR_RETURN(std::vector<ResumedSequence> more, ParseResumed(line));
    const RequestId id(f.Get<uint64_t>("kv_extended"));
    if (line.contains("more_output")) {  // of version 3, for a request of one sequence
      more = {{f.Get<std::vector<TokenId>>("more_output"), false}};
      entry = LoggedKvExtension{id, std::move(more), {f.Get<int>("imported_tokens")}};
    } else {
      entry = LoggedKvExtension{id, std::move(more), f.Get<std::vector<int>>("imported_tokens")};
    }
  } else if (line.contains("import_closed")) {
    entry = LoggedImportEnd{f.At(), RequestId(f.Get<uint64_t>("import_closed"))};
  } else if (line.contains("expose")) {
    entry = LoggedExport{f.At(), RequestId(f.Get<uint64_t>("expose")),
                         Duration{f.Get<int64_t>("hold_kv_ns")}};
  } else if (line.contains("freeze")) {
    entry = LoggedPause{RequestId(f.Get<uint64_t>("freeze")), f.Get<bool>("paused")};
  } else if (line.contains("detach")) {
    LoggedDetach detach{f.At(), RequestId(f.Get<uint64_t>("detach")), {}};
    if (const auto ns = f.Optional<int64_t>("hold_kv_ns")) detach.hold_kv = Duration{*ns};
    entry = detach;
  }
  MR_RETURN_IF_ERROR(f.status());
  return entry;
}

Result<LogEntry> ParseEntry(const Json& line) {
  if (line.contains("add")) return ParseAdd(line);
  if (line.contains("step")) return ParseStep(line);
  if (line.contains("commit")) return ParseCommit(line);
  if (line.contains("reset_prefix_cache")) return LogEntry(LoggedReset{});
  if (const auto costs = line.find("costs"); costs != line.end() && costs->is_object()) {
    MR_ASSIGN_OR_RETURN(const PreemptionCosts parsed, ParseCosts(*costs));
    return LogEntry(LoggedCosts{parsed});
  }
  if (line.contains("limit_blocks")) {
    Fields f(line);
    const LoggedLimit limit{f.Get<int>("limit_blocks")};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(limit);
  }
  if (const auto limits = line.find("limit_steps"); limits != line.end() && limits->is_object()) {
    Fields f(*limits);
    const StepLimits parsed{f.Optional<int>("tokens_beside_decodes"),
                            f.Optional<int>("tokens_before_prompts")};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(LoggedStepLimits{parsed});
  }
  MR_ASSIGN_OR_RETURN(auto hand_over, ParseHandOver(line));
  if (hand_over) return std::move(*hand_over);
  Fields f(line);
  if (line.contains("idle")) {
    const LoggedIdle idle{f.At()};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(idle);
  }
  if (line.contains("abort")) {
    LoggedAbort abort{f.At(), RequestId(f.Get<uint64_t>("abort")), f.Optional<int>("index")};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(abort);
  }
  return InvalidArgument("not an entry of a step log");
}

// A cluster's log has the lines of all its pipelines.
Status AnotherPipeline(const Json& first) {
  const std::string cure =
      first.is_number_unsigned()
          ? fmt::format("; this gives those of the first alone: grep '^{{\"pipeline\":{},' FILE",
                        first.get<uint64_t>())
          : "";
  return InvalidArgument("the steps of another pipeline begin here, and one is replayed at a time" +
                         cure);
}

Result<SchedulerOptions> ParseHeader(const Json& line) {
  constexpr std::string_view kCure = "`millrace serve --step-log FILE` writes one";
  const auto version = line.find("millrace_step_log");
  const bool known =
      version != line.end() && (*version == kStepLogVersion || *version == kStepLogVersionOldest);
  if (version != line.end() && version->is_number_integer() && !known) {
    return InvalidArgument(
        fmt::format("a step log of version {}, only versions {} and {} are "
                    "read; {}",
                    version->dump(), kStepLogVersionOldest, kStepLogVersion, kCure));
  }
  const auto options = line.find("options"), costs = line.find("costs");
  const bool whole = known && options != line.end() && costs != line.end() &&
                     options->is_object() && costs->is_object();
  if (!whole) {
    return InvalidArgument(fmt::format("not a step log of version {}; {}", kStepLogVersion, kCure));
  }
  MR_ASSIGN_OR_RETURN(SchedulerOptions parsed, ParseOptions(*options));
  MR_ASSIGN_OR_RETURN(parsed.costs, ParseCosts(*costs));
  return parsed;
}

}  // namespace

Result<StepLog> ParseStepLog(std::string_view text) {
  StepLog log;
  LineReader lines(text);
  bool header = false;
  Json first;  // the pipeline that the log begins with
  while (const auto text_line = lines.Next()) {
    const auto refuse = [&](const Status& why) {
      return why.WithContext(fmt::format("line {}", lines.number()));
    };
    const auto line = ParseJson(*text_line);
    if (!line.ok()) return refuse(line.status());
    if (!line->is_object()) return refuse(InvalidArgument("not a JSON object"));
    if (!header) {
      auto options = ParseHeader(*line);
      if (!options.ok()) return refuse(options.status());
      log.options = std::move(*options);
      first = line->value("pipeline", Json());
      header = true;
      continue;
    }
    if (line->contains("millrace_step_log")) return refuse(AnotherPipeline(first));
    auto entry = ParseEntry(*line);
    if (!entry.ok()) return refuse(entry.status());
    log.entries.push_back(std::move(*entry));
  }
  if (!header) return InvalidArgument("the step log is empty");
  return log;
}

}  // namespace millrace::sched
