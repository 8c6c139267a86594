#include "sched/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/json.h"
#include "base/text_lines.h"

namespace millrace::sched {
namespace {

Json EncodeOptions(const SchedulerOptions& o) {
  return {{"block_size", o.block_size},
          {"num_blocks", o.num_blocks},
          {"num_host_blocks", o.num_host_blocks},
          {"max_num_seqs", o.max_num_seqs},
          {"max_num_batched_tokens", o.max_num_batched_tokens},
          {"max_model_len", o.max_model_len},
          {"max_waiting", o.max_waiting},
          {"stages", o.stages},
          {"policy", static_cast<int>(o.policy)},
          {"kv_policy", static_cast<int>(o.kv_policy)},
          {"step_mix", static_cast<int>(o.step_mix)},
          {"preemption", static_cast<int>(o.preemption)},
          {"prefix_caching", o.prefix_caching},
          {"watermark", o.watermark},
          {"watchdog_ns", o.watchdog.ns},
          {"eos_token_ids", o.eos_token_ids},
          {"cache_identity", o.cache_identity}};
}

Json EncodeCosts(const PreemptionCosts& c) {
  return {{"prefill_tokens_per_s", c.prefill_tokens_per_s},
          {"swap_bytes_per_s", c.swap_bytes_per_s},
          {"swap_block_overhead_s", c.swap_block_overhead_s},
          {"kv_bytes_per_block", c.kv_bytes_per_block}};
}

// What decides: lengths, stops and copies. How tokens are drawn is not the scheduler's affair.
Json EncodeParams(const SamplingParams& p) {
  Json out = {{"n", p.n}, {"min_tokens", p.min_tokens}, {"ignore_eos", p.ignore_eos}};
  if (p.max_tokens) out["max_tokens"] = *p.max_tokens;
  if (!p.stop_token_ids.empty()) out["stop_token_ids"] = p.stop_token_ids;
  if (p.prompt_logprobs) out["prompt_logprobs"] = *p.prompt_logprobs;
  return out;
}

struct Encoder {
  Json operator()(const LoggedAdd& e) const {
    const NewRequest& r = e.request;
    Json out = {{"add", r.id.value()},
                {"t", e.at.ns},
                {"prompt", *r.prompt},
                {"params", EncodeParams(*r.params)},
                {"seed", r.seed},
                {"priority", r.priority},
                {"cache_salt", r.cache_salt}};
    if (!r.resumed_output.empty()) out["resumed_output"] = r.resumed_output;
    if (r.imported_tokens != 0) out["imported_tokens"] = r.imported_tokens;
    if (r.hold_kv) out["hold_kv_ns"] = r.hold_kv->ns;
    if (r.known_output_tokens) out["known_output_tokens"] = *r.known_output_tokens;
    return out;
  }
  Json operator()(const LoggedAbort& e) const {
    Json out = {{"abort", e.id.value()}, {"t", e.at.ns}};
    if (e.index) out["index"] = *e.index;
    return out;
  }
  Json operator()(const LoggedCosts& e) const { return {{"costs", EncodeCosts(e.costs)}}; }
  Json operator()(const LoggedReset&) const { return {{"reset_prefix_cache", true}}; }
  Json operator()(const LoggedKvArrival& e) const {
    return {{"kv_arrived", e.id.value()}, {"t", e.at.ns}, {"complete", e.complete}};
  }
  Json operator()(const LoggedKvRelease& e) const { return {{"kv_release", e.id.value()}}; }
  Json operator()(const LoggedStep& e) const {
    Json parts = Json::array();
    for (const auto& p : e.parts) parts.push_back({p.id.value(), p.start, p.num_tokens});
    return {{"step", e.id.value()},
            {"t", e.at.ns},
            {"parts", std::move(parts)},
            {"blocks", e.blocks},
            {"moved", {e.swapped_out, e.swapped_in, e.copied}}};
  }
  Json operator()(const LoggedCommit& e) const {
    Json tokens = Json::array();
    for (const auto& t : e.tokens) tokens.push_back(t ? Json(*t) : Json(nullptr));
    return {{"commit", e.id.value()}, {"t", e.at.ns}, {"tokens", std::move(tokens)}};
  }
};

// Reads fields of one line; the first that is wrong is remembered.
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
  o.policy = EnumOf(f, "policy", SchedulingPolicy::kPriority);
  o.kv_policy = EnumOf(f, "kv_policy", KvPolicy::kOrcaOracle);
  o.step_mix = EnumOf(f, "step_mix", StepMix::kPrefillFirst);
  o.preemption = EnumOf(f, "preemption", PreemptionMode::kAuto);
  o.prefix_caching = f.Get<bool>("prefix_caching");
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

Result<LogEntry> ParseAdd(const Json& line) {
  static const Json kEmpty = Json::object();
  const auto params_at = line.find("params");
  const bool has_params = params_at != line.end() && params_at->is_object();
  Fields f(line), p(has_params ? *params_at : kEmpty);
  auto params = std::make_shared<SamplingParams>();
  params->n = p.Get<int>("n", 1);
  params->min_tokens = p.Get<int>("min_tokens");
  params->ignore_eos = p.Get<bool>("ignore_eos");
  params->max_tokens = p.Optional<int>("max_tokens");
  params->stop_token_ids = p.Get<std::vector<TokenId>>("stop_token_ids");
  params->prompt_logprobs = p.Optional<int>("prompt_logprobs");
  if (params->n < 1 || params->n > kSequencesPerRequestMax) p.Refuse("n");
  LoggedAdd add{.at = f.At()};
  add.request.id = RequestId(f.Get<uint64_t>("add"));
  add.request.prompt =
      std::make_shared<const std::vector<TokenId>>(f.Get<std::vector<TokenId>>("prompt"));
  add.request.params = std::move(params);
  add.request.seed = f.Get<uint64_t>("seed");
  add.request.priority = f.Get<int>("priority");
  add.request.cache_salt = f.Get<std::string>("cache_salt");
  add.request.resumed_output = f.Get<std::vector<TokenId>>("resumed_output");
  add.request.imported_tokens = f.Get<int>("imported_tokens");
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
  return LogEntry(std::move(commit));
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
  Fields f(line);
  if (line.contains("kv_arrived")) {
    const LoggedKvArrival arrival{f.At(), RequestId(f.Get<uint64_t>("kv_arrived")),
                                  f.Get<bool>("complete")};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(arrival);
  }
  if (line.contains("kv_release")) {
    const LoggedKvRelease release{RequestId(f.Get<uint64_t>("kv_release"))};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(release);
  }
  if (line.contains("abort")) {
    LoggedAbort abort{f.At(), RequestId(f.Get<uint64_t>("abort")), f.Optional<int>("index")};
    MR_RETURN_IF_ERROR(f.status());
    return LogEntry(abort);
  }
  return InvalidArgument("not an entry of a step log");
}

}  // namespace

LoggedStep LoggedStep::Of(const StepPlan& plan, Time at) {
  LoggedStep step{.at = at,
                  .id = plan.id,
                  .blocks = plan.blocks,
                  .swapped_out = static_cast<int>(plan.swap_out.size()),
                  .swapped_in = static_cast<int>(plan.swap_in.size()),
                  .copied = static_cast<int>(plan.copies.size())};
  for (const SequenceStep& s : plan.sequences) step.parts.push_back({s.id, s.start, s.num_tokens});
  return step;
}

bool LoggedStep::SameDecision(const LoggedStep& other) const {
  return id == other.id && parts == other.parts && blocks == other.blocks &&
         swapped_out == other.swapped_out && swapped_in == other.swapped_in &&
         copied == other.copied;
}

std::string EncodeHeader(const SchedulerOptions& options) {
  return DumpJson({{"millrace_step_log", kStepLogVersion},
                   {"options", EncodeOptions(options)},
                   {"costs", EncodeCosts(options.costs)}});
}

std::string EncodeEntry(const LogEntry& entry) { return DumpJson(std::visit(Encoder{}, entry)); }

Result<StepLog> ParseStepLog(std::string_view text) {
  StepLog log;
  LineReader lines(text);
  bool header = false;
  while (const auto text_line = lines.Next()) {
    const auto refuse = [&](const Status& why) {
      return why.WithContext(fmt::format("line {}", lines.number()));
    };
    const auto line = ParseJson(*text_line);
    if (!line.ok()) return refuse(line.status());
    if (!line->is_object()) return refuse(InvalidArgument("not a JSON object"));
    if (!header) {
      const auto options = line->find("options"), costs = line->find("costs");
      if (line->value("millrace_step_log", Json()) != kStepLogVersion || options == line->end() ||
          costs == line->end() || !options->is_object() || !costs->is_object()) {
        return refuse(InvalidArgument(
            fmt::format("not a step log of version {}; `millrace serve --step-log FILE` writes one",
                        kStepLogVersion)));
      }
      auto parsed = ParseOptions(*options);
      if (!parsed.ok()) return refuse(parsed.status());
      log.options = std::move(*parsed);
      auto parsed_costs = ParseCosts(*costs);
      if (!parsed_costs.ok()) return refuse(parsed_costs.status());
      log.options.costs = *parsed_costs;
      header = true;
      continue;
    }
    auto entry = ParseEntry(*line);
    if (!entry.ok()) return refuse(entry.status());
    log.entries.push_back(std::move(*entry));
  }
  if (!header) return InvalidArgument("the step log is empty");
  return log;
}

}  // namespace millrace::sched
