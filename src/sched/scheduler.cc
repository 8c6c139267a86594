#include "sched/scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "sched/finish_rules.h"
#include "sched/new_request.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {
namespace {

Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return OkStatus();
  return InvalidArgument(fmt::format("{} must be at least {}, got {}", name, least, value));
}

Status CheckOptions(const SchedulerOptions& o) {
  MR_RETURN_IF_ERROR(AtLeast("block_size", o.block_size, 1));
  MR_RETURN_IF_ERROR(AtLeast("num_blocks", o.num_blocks, 1));
  MR_RETURN_IF_ERROR(AtLeast("num_host_blocks", o.num_host_blocks, 0));
  MR_RETURN_IF_ERROR(AtLeast("max_num_seqs", o.max_num_seqs, 1));
  MR_RETURN_IF_ERROR(AtLeast("max_num_batched_tokens", o.max_num_batched_tokens, 1));
  MR_RETURN_IF_ERROR(AtLeast("max_model_len", o.max_model_len, 2));
  MR_RETURN_IF_ERROR(AtLeast("max_waiting", o.max_waiting, 1));
  MR_RETURN_IF_ERROR(AtLeast("stages", o.stages, 1));
  if (!(o.watermark >= 0 && o.watermark < 1)) {
    return InvalidArgument(fmt::format("watermark must be in [0, 1), got {}", o.watermark));
  }
  if (o.preemption == PreemptionMode::kSwap && o.num_host_blocks == 0) {
    return InvalidArgument("preemption by swap needs host blocks, and num_host_blocks is 0");
  }
  if (std::ranges::count(kv::EvictionOrderNames(), o.prefix_eviction) == 0) {
    return InvalidArgument(fmt::format("prefix_eviction must be one of {}, got '{}'",
                                       fmt::join(kv::EvictionOrderNames(), ", "),
                                       o.prefix_eviction));
  }
  return OkStatus();
}

// Its sequences, with what happened to them elsewhere. `next_sequence`: the next free id.
void TakeHistory(Request& r, std::span<const TokenId> eos, uint64_t& next_sequence) {
  if (r.spec.params->beam_search) {
    r.beams = std::make_unique<BeamSearch>(*r.spec.params, eos, r.output_limit, r.spec.beams.get());
    if (!r.spec.beams) {
      for (const ResumedSequence& s : r.spec.resumed) r.delivered.push_back(s.finished);
      r.spec.resumed.clear();
    }
    r.spec.beams.reset();
  }
  r.account = r.spec.account.begun() ? std::move(r.spec.account) : TimeAccount(r.times.arrived);
  r.spec.account = {};
  r.sequences.resize(r.spec.params->n);
  for (int i = 0; i < r.spec.params->n; ++i) {
    Sequence& s = r.sequences[i];
    s.id = SequenceId(next_sequence++);
    s.index = i;
    s.request = &r;
    s.seed = SequenceSeed(r.spec.seed, i);
    if (r.spec.resumed.empty()) continue;
    s.output = std::move(r.spec.resumed[i].output);
    // It has a token, so all before that were computed where it ran.
    if (!s.output.empty()) s.computed_most = r.TotalOf(s) - 1;
    // The reason for its end was delivered by the previous scheduler.
    if (r.spec.resumed[i].finished) s.finish = FinishReason::kStop;
  }
  r.spec.resumed.clear();
  r.sharing_prompt = r.live() > 1;
}

}  // namespace

const StepPlan* Scheduler::Schedule(Time now) {
  std::vector<KvPull> pulls;
  const StepPlan* plan = Schedule(now, pulls).plan;
  MR_CHECK(pulls.empty()) << "request " << pulls.front().id << " imports KV";
  return plan;
}

void Scheduler::Commit(const StepResult& result, Time now, std::vector<RequestOutput>& outputs) {
  std::vector<KvPull> pulls;
  const Status taken = Commit(result, now, outputs, pulls);
  MR_CHECK(taken.ok()) << taken.message();
  MR_CHECK(pulls.empty()) << "request " << pulls.front().id << " imports KV";
}

Result<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& options) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  return std::unique_ptr<Scheduler>(std::make_unique<SchedulerImpl>(options));
}

SchedulerImpl::SchedulerImpl(const SchedulerOptions& options)
    : options_(options),
      kv_({.block_size = options.block_size,
           .num_blocks = options.num_blocks,
           .num_host_blocks = options.num_host_blocks,
           .prefix_caching = options.prefix_caching,
           .identity = options.cache_identity,
           .eviction = options.prefix_eviction,
           .hashes_collide = options.hashes_collide}),
      forks_(kv_),
      reservations_(options),
      pulls_(kv_.device(), options.block_size),
      holds_(kv_.device()),
      watermark_blocks_(static_cast<int>(options.watermark * options.num_blocks)),
      order_(options.policy, requests_),
      ledger_(options.stages),
      builder_(kv_, ledger_, pulls_) {}

Status SchedulerImpl::Add(NewRequest spec, Time now) {
  MR_CHECK(spec.prompt && spec.params) << "a request without prompt or parameters";
  MR_CHECK(requests_.Find(spec.id) == nullptr) << "request id " << spec.id << " is in use";
  MR_ASSIGN_OR_RETURN(const int output_limit,
                      OutputLimitHere(spec, options_.max_model_len, reservations_.ModelLenMax()));
  MR_RETURN_IF_ERROR(reservations_.CheckFits(spec, output_limit));
  if (pulls_.due(spec.id)) {
    return Unavailable(fmt::format("the last pull for request {} has not ended", spec.id.value()));
  }
  MR_RETURN_IF_ERROR(CheckHandOff(spec, output_limit));
  const bool handed = spec.times || !spec.resumed.empty();
  const int64_t waiting_max = int64_t{options_.max_waiting} * (handed ? kHandedWaitingFactor : 1);
  if (std::ssize(requests_.waiting()) >= waiting_max) {
    return ResourceExhausted(
        fmt::format("{} requests are waiting, the limit is {}; try again later",
                    requests_.waiting().size(), waiting_max));
  }
  if (!HasWork()) last_moved_ = now;
  auto owned = std::make_unique<Request>();
  Request& r = *owned;
  r.spec = std::move(spec);
  r.times = r.spec.times.value_or(RequestTimes{.arrived = now});
  order_.Join(r);
  r.prompt_tokens = static_cast<int>(r.spec.prompt->size());
  r.needs_whole_prompt = NeedsWholePrompt(r.spec);
  r.pools = r.spec.params->pools();
  r.output_limit = output_limit;
  r.ends_by_length_only = EndsByLengthOnly(*r.spec.params, options_.eos_token_ids);
  r.continues_elsewhere = ContinuesElsewhere(r.spec, options_.max_model_len);
  r.cached_prompt_tokens = r.spec.cached_prompt_tokens;
  r.import.awaited =
      std::ranges::any_of(r.spec.imported_tokens, [](int tokens) { return tokens > 0; });
  r.import.open = r.spec.import_open;
  TakeHistory(r, options_.eos_token_ids, next_sequence_);
  ++stats_.requests_accepted;
  requests_.Add(std::move(owned));
  accounting_.Joined(r, now);
  return OkStatus();
}

}  // namespace millrace::sched
