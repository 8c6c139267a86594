#include "sched/step_log.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "base/json.h"
#include "sched/beam_search.h"

namespace millrace::sched {
namespace {

Json EncodeOptions(const SchedulerOptions& o) {
  Json out = {{"block_size", o.block_size},
              {"num_blocks", o.num_blocks},
              {"num_host_blocks", o.num_host_blocks},
              {"max_num_seqs", o.max_num_seqs},
              {"max_num_batched_tokens", o.max_num_batched_tokens},
              {"max_model_len", o.max_model_len},
              {"max_waiting", o.max_waiting},
              {"stages", o.stages},
              {"even_steps", o.even_steps},
              {"policy", static_cast<int>(o.policy)},
              {"kv_policy", static_cast<int>(o.kv_policy)},
              {"step_mix", static_cast<int>(o.step_mix)},
              {"preemption", static_cast<int>(o.preemption)},
              {"prefix_caching", o.prefix_caching},
              {"watermark", o.watermark},
              {"watchdog_ns", o.watchdog.ns},
              {"eos_token_ids", o.eos_token_ids},
              {"cache_identity", o.cache_identity}};
  if (o.prefix_eviction != kv::kLru) out["prefix_eviction"] = o.prefix_eviction;
  return out;
}

Json EncodeResumed(const std::vector<ResumedSequence>& resumed) {
  Json out = Json::array();
  for (const ResumedSequence& s : resumed) {
    out.push_back({{"output", s.output}, {"finished", s.finished}});
  }
  return out;
}

Json EncodeCosts(const PreemptionCosts& c) {
  return {{"prefill_tokens_per_s", c.prefill_tokens_per_s},
          {"swap_bytes_per_s", c.swap_bytes_per_s},
          {"swap_block_overhead_s", c.swap_block_overhead_s},
          {"kv_bytes_per_block", c.kv_bytes_per_block}};
}

// Lengths and counts are always written; options and lists only if there is something in them.
struct ParamsEncoder {
  template <typename T>
  void operator()(const SamplingField& field, const T& value) {
    if (!field.schedules) return;
    if constexpr (std::is_arithmetic_v<T>) {
      out[field.name] = value;
    } else if constexpr (std::is_enum_v<T>) {
      if (value != T{}) out[field.name] = static_cast<int>(value);
    } else if constexpr (requires { value.has_value(); }) {
      if (value) out[field.name] = *value;
    } else if (!value.empty()) {
      out[field.name] = value;
    }
  }

  Json out = Json::object();
};

// The parameters that affect decisions: lengths, stops and copies. How tokens are sampled does not.
Json EncodeParams(const SamplingParams& params) {
  ParamsEncoder encoder;
  ForEachField(params, encoder);
  return std::move(encoder.out);
}

Json EncodeCandidates(const std::vector<TokenLogprob>& candidates) {
  Json out = Json::array();
  for (const TokenLogprob& c : candidates) out.push_back({c.token, c.logprob});
  return out;
}

// Without the log-probabilities of each token, which decide nothing.
Json EncodeBeams(const BeamState& state) {
  Json sums = Json::array(), answers = Json::array();
  for (const BeamState::Beam& beam : state.beams) sums.push_back(beam.logprob);
  for (const BeamAnswer& answer : state.answers) {
    answers.push_back({{"tokens", answer.tokens},
                       {"score", answer.score},
                       {"stopped", answer.finish == FinishReason::kStop}});
  }
  return {{"logprobs", std::move(sums)}, {"answers", std::move(answers)}};
}

Json EncodeTimes(const RequestTimes& times) {
  Json out = {{"arrived", times.arrived.ns}};
  const auto put = [&out](const char* key, std::optional<Time> time) {
    if (time) out[key] = time->ns;
  };
  put("first_scheduled", times.first_scheduled);
  put("last_scheduled", times.last_scheduled);
  put("first_token", times.first_token);
  put("last_token", times.last_token);
  if (times.held.ns > 0) out["held"] = times.held.ns;
  if (times.transferred.ns > 0) out["transferred"] = times.transferred.ns;
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
    if (!r.client.empty()) out["client"] = r.client;
    if (!r.resumed.empty()) out["resumed"] = EncodeResumed(r.resumed);
    if (r.beams) out["beams"] = EncodeBeams(*r.beams);
    if (r.times) out["times"] = EncodeTimes(*r.times);
    if (r.cached_prompt_tokens != 0) out["cached_prompt_tokens"] = r.cached_prompt_tokens;
    if (!r.imported_tokens.empty()) out["imported_tokens"] = r.imported_tokens;
    if (r.import_open) out["import_open"] = true;
    if (r.stop_after_prompt) out["stop_after_prompt"] = true;
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
  Json operator()(const LoggedLimit& e) const { return {{"limit_blocks", e.blocks}}; }
  Json operator()(const LoggedStepLimits& e) const {
    Json limits = Json::object();
    const auto& [decodes, prompts] = e.limits;
    if (decodes) limits["tokens_beside_decodes"] = *decodes;
    if (prompts) limits["tokens_before_prompts"] = *prompts;
    return {{"limit_steps", limits}};
  }
  Json operator()(const LoggedReset&) const { return {{"reset_prefix_cache", true}}; }
  Json operator()(const LoggedKvArrival& e) const {
    Json out = {{"kv_arrived", e.id.value()}, {"t", e.at.ns}, {"complete", e.complete}};
    if (e.lacking) out["lacking"] = {e.lacking->begin, e.lacking->end};
    return out;
  }
  Json operator()(const LoggedKvRelease& e) const { return {{"kv_release", e.id.value()}}; }
  Json operator()(const LoggedHoldExtension& e) const {
    return {{"hold_extended", e.id.value()}, {"t", e.at.ns}, {"hold_kv_ns", e.hold_kv.ns}};
  }
  Json operator()(const LoggedKvExtension& e) const {
    return {{"kv_extended", e.id.value()},
            {"resumed", EncodeResumed(e.more)},
            {"imported_tokens", e.imported_tokens}};
  }
  Json operator()(const LoggedImportEnd& e) const {
    return {{"import_closed", e.id.value()}, {"t", e.at.ns}};
  }
  Json operator()(const LoggedExport& e) const {
    return {{"expose", e.id.value()}, {"t", e.at.ns}, {"hold_kv_ns", e.hold_kv.ns}};
  }
  Json operator()(const LoggedPause& e) const {
    return {{"freeze", e.id.value()}, {"paused", e.paused}};
  }
  Json operator()(const LoggedDetach& e) const {
    Json out = {{"detach", e.id.value()}, {"t", e.at.ns}};
    if (e.hold_kv) out["hold_kv_ns"] = e.hold_kv->ns;
    return out;
  }
  Json operator()(const LoggedStep& e) const {
    Json parts = Json::array();
    for (const auto& p : e.parts) parts.push_back({p.id.value(), p.start, p.num_tokens});
    return {{"step", e.id.value()},
            {"t", e.at.ns},
            {"parts", std::move(parts)},
            {"blocks", e.blocks},
            {"moved", {e.swapped_out, e.swapped_in, e.copied}}};
  }
  Json operator()(const LoggedIdle& e) const { return {{"idle", true}, {"t", e.at.ns}}; }
  Json operator()(const LoggedCommit& e) const {
    Json tokens = Json::array();
    for (const auto& t : e.tokens) tokens.push_back(t ? Json(*t) : Json(nullptr));
    Json out = {{"commit", e.id.value()}, {"t", e.at.ns}, {"tokens", std::move(tokens)}};
    for (const std::vector<TokenLogprob>& part : e.candidates) {
      out["candidates"].push_back(EncodeCandidates(part));
    }
    return out;
  }
};

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

}  // namespace millrace::sched
