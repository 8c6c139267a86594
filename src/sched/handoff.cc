// KV that comes from another stage, and KV that is kept for one (DistServe section 4.3: the decode
// side pulls when it has room, the prefill side's memory is the queue). While a pull writes into
// blocks they are pinned, so that an abort cannot give them away; held KV is pinned with an end.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {
namespace {

// The body owes a KvArrived for every pull, so a pull's pin has no end of its own.
constexpr Time kForEver{std::numeric_limits<int64_t>::max()};

kv::TransferId TransferOf(RequestId id) { return kv::TransferId(id.value()); }

}  // namespace

Status SchedulerImpl::CheckHandOff(const NewRequest& request, int output_limit) {
  const bool handed = request.imported_tokens != 0 || !request.resumed_output.empty();
  if (!handed && !request.hold_kv) return OkStatus();
  if (request.params->n != 1) {
    return InvalidArgument(
        fmt::format("a request of {} sequences cannot be handed over", request.params->n));
  }
  const int64_t resumed = std::ssize(request.resumed_output);
  if (resumed >= output_limit) {
    return InvalidArgument(fmt::format("{} of {} tokens are generated already: nothing is left",
                                       resumed, output_limit));
  }
  const int64_t known = std::ssize(*request.prompt) + resumed;
  if (request.imported_tokens < 0 || request.imported_tokens >= known) {
    return InvalidArgument(fmt::format(
        "imported_tokens must be in [0, {}): the last known token is computed here, got {}", known,
        request.imported_tokens));
  }
  return OkStatus();
}

void SchedulerImpl::StartPulling(Request& request) {
  waiting_.erase(request.key);
  pulling_.emplace(request.key, &request);
  request.state = RequestState::kPulling;
  kv_.device().Pin(TransferOf(request.spec.id), request.sequences.front().table, kForEver);
  const Sequence& s = request.sequences.front();
  KvPull& pull = pulls_.emplace_back();
  pull.id = request.spec.id;
  pull.first_token = std::min(s.computed, request.spec.imported_tokens);
  pull.end_token = request.spec.imported_tokens;
  for (kv::BlockHandle block : s.table) pull.blocks.push_back(block.index);
}

void SchedulerImpl::DrainPulls(std::vector<KvPull>& pulls) {
  std::ranges::move(pulls_, std::back_inserter(pulls));
  pulls_.clear();
}

void SchedulerImpl::KvArrived(RequestId id, bool complete, Time now) {
  kv_.device().Unpin(TransferOf(id));
  Request* r = Find(id);
  if (!r || r->state != RequestState::kPulling) return;
  Sequence& s = r->sequences.front();
  r->imports = false;
  if (complete) {
    s.computed = std::max(s.computed, r->spec.imported_tokens);
    s.computed_most = std::max(s.computed_most, s.computed);
  }
  pulling_.erase(r->key);
  StartRunning(*r);
  UpdatePromise(*r);
  IndexPrefixes(s);
  r->was_admitted = true;
  if (!r->times.first_scheduled) r->times.first_scheduled = now;
  r->times.last_scheduled = now;
  last_moved_ = now;
}

void SchedulerImpl::HoldKv(const Sequence& sequence) {
  const Request& r = *sequence.request;
  const bool ended_well =
      sequence.finish == FinishReason::kStop || sequence.finish == FinishReason::kLength;
  if (!r.spec.hold_kv || !ended_well) return;
  kv_.device().Pin(TransferOf(r.spec.id), sequence.table,
                   r.times.last_token.value_or(r.times.arrived) + *r.spec.hold_kv);
}

std::vector<BlockIndex> SchedulerImpl::HeldBlocks(RequestId id) const {
  std::vector<BlockIndex> blocks;
  for (kv::BlockHandle block : kv_.device().PinnedBy(TransferOf(id))) blocks.push_back(block.index);
  return blocks;
}

void SchedulerImpl::ReleaseKv(RequestId id) { kv_.device().Unpin(TransferOf(id)); }

}  // namespace millrace::sched
