// Read-only views: counts, one request, why it waits, whether anything makes progress.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

SchedulerStats SchedulerImpl::Stats() const {
  SchedulerStats stats = stats_;
  const kv::BlockPool& device = kv_.device();
  for (const auto& [key, request] : waiting_) {
    ++(request->state == RequestState::kSwapped ? stats.swapped : stats.waiting);
  }
  stats.pulling = static_cast<int>(pulling_.size());
  stats.running = static_cast<int>(running_.size());
  for (const Request* r : running_) {
    for (const Sequence& s : r->sequences) {
      if (!s.live()) continue;
      stats.tokens_computed += s.computed;
      stats.tokens_to_come += r->output_limit - std::ssize(s.output);
    }
    stats.tokens_promised +=
        int64_t{r->spec.params->n} * reservations_.SlotsEach(r->spec, r->output_limit).value_or(0);
  }
  stats.blocks_total = device.limit();
  stats.blocks_free = device.available();
  stats.blocks_cached = device.count(kv::BlockState::kCached);
  stats.blocks_pending = device.count(kv::BlockState::kPendingFree);
  stats.blocks_pinned = device.count(kv::BlockState::kPinned);
  stats.blocks_reserved = reservations_.blocks();
  stats.host_blocks_used = kv_.host().count(kv::BlockState::kOwned);
  return stats;
}

const Request* SchedulerImpl::FindEvenEnded(RequestId id) const {
  if (const Request* r = Find(id)) return r;
  for (const auto& r : buried_) {
    if (r->spec.id == id) return r.get();
  }
  return nullptr;
}

std::optional<RequestInfo> SchedulerImpl::Inspect(RequestId id, Time now) const {
  const Request* r = FindEvenEnded(id);
  if (!r) return std::nullopt;
  return InfoOf(*r, now);
}

std::vector<RequestInfo> SchedulerImpl::InspectAll(Time now) const {
  std::vector<RequestInfo> infos;
  for (const Request* r : running_) infos.push_back(InfoOf(*r, now));
  for (const auto& [key, r] : pulling_) infos.push_back(InfoOf(*r, now));
  for (const auto& [key, r] : waiting_) infos.push_back(InfoOf(*r, now));
  return infos;
}

RequestInfo SchedulerImpl::InfoOf(const Request& request, Time now) const {
  RequestInfo info;
  info.id = request.spec.id;
  info.state = request.state;
  info.age = now - request.times.arrived;
  info.prompt_tokens = request.prompt_tokens;
  info.preemptions = request.preemptions;
  info.cached_prompt_tokens = request.cached_prompt_tokens;
  std::vector<BlockIndex> device, host;
  for (const Sequence& s : request.sequences) {
    info.computed_tokens += s.computed;
    info.output_tokens += static_cast<int>(s.output.size());
    for (kv::BlockHandle block : s.table) device.push_back(block.index);
    for (kv::BlockHandle block : s.host_table) host.push_back(block.index);
  }
  const auto distinct = [](std::vector<BlockIndex>& blocks) {
    std::ranges::sort(blocks);
    return static_cast<int>(std::unique(blocks.begin(), blocks.end()) - blocks.begin());
  };
  info.blocks = distinct(device);
  info.host_blocks = distinct(host);
  info.waits_for = WaitReason(request);
  return info;
}

std::string SchedulerImpl::WaitReason(const Request& request) const {
  if (request.state == RequestState::kFinished) return "";
  if (request.paused) return "its hand-over to another scheduler";
  if (request.state == RequestState::kPulling) {
    return fmt::format("{} of {} tokens from another stage",
                       pulls_.due(request.spec.id) ? "the KV" : "more than the KV",
                       request.sequences[request.leader].lacking_until);
  }
  if (request.state == RequestState::kRunning) {
    if (request.verdict.reason != Verdict::Reason::kGrowth) return "";
    return fmt::format("KV blocks to go on: it needs {} more, {} of {} are available",
                       request.verdict.needed, request.verdict.available, options_.num_blocks);
  }
  const auto place = waiting_.find(request.key);
  if (place != waiting_.begin()) {
    return fmt::format("its turn: {} requests are before it in the queue, first request {}",
                       std::distance(waiting_.begin(), place),
                       waiting_.begin()->second->spec.id.value());
  }
  const Verdict& v = request.verdict;
  switch (v.reason) {
    case Verdict::Reason::kNotTried:
    case Verdict::Reason::kAdmitted:
    case Verdict::Reason::kGrowth:
      return steps_in_flight() >= options_.stages
                 ? fmt::format("a step to end: {} of {} are in flight", steps_in_flight(),
                               options_.stages)
                 : "the next step";
    case Verdict::Reason::kStepInFlight: return "the step it was in when it was preempted";
    case Verdict::Reason::kPreemptedThisStep: return "the step after the one that preempted it";
    case Verdict::Reason::kSequences:
      return fmt::format("a place: it has {} sequences and {} more may run", v.needed,
                         std::max(v.available, 0));
    case Verdict::Reason::kReservation:
      return fmt::format("KV blocks: it reserves {} and {} of {} are not reserved", v.needed,
                         v.available, options_.num_blocks);
    case Verdict::Reason::kChunks:
      return fmt::format(
          "KV blocks: it reserves {} run{} of {} adjacent ones and {} such {} free ({} of {} "
          "blocks "
          "are not reserved)",
          request.spec.params->n, request.spec.params->n == 1 ? "" : "s", v.needed, v.available,
          v.available == 1 ? "is" : "are", v.headroom, options_.num_blocks);
    case Verdict::Reason::kBlocks:
      return fmt::format(
          "KV blocks: it needs {}, {} of {} are available, and {} are kept for running "
          "requests ({} come free with steps in flight)",
          v.needed, std::max(kv_.available() - promised_blocks_, 0), options_.num_blocks,
          v.headroom, kv_.soon_available() - kv_.available());
  }
  return "";
}

std::optional<RequestInfo> SchedulerImpl::Stalled(Time now) const {
  if (!HasWork() || now - last_moved_ <= options_.watchdog) return std::nullopt;
  // A request in the oldest step in flight, else the first in order.
  if (!ledger_.empty()) {
    for (const LedgerEntry& entry : ledger_.front().entries) {
      if (entry.sequence->live()) return InfoOf(*entry.sequence->request, now);
    }
  }
  // A pulling or paused request depends on the caller that hands it over, which has its own
  // deadline.
  for (const Request* r : running_) {
    if (!r->paused) return InfoOf(*r, now);
  }
  if (!pulling_.empty()) return std::nullopt;
  for (const auto& [key, r] : waiting_) {
    if (!r->paused) return InfoOf(*r, now);
  }
  return std::nullopt;
}

void SchedulerImpl::DrainPreemptions(std::vector<PreemptionRecord>& records) {
  records.insert(records.end(), preemptions_.begin(), preemptions_.end());
  preemptions_.clear();
}

void SchedulerImpl::CheckIntegrity() const {
  CheckBlocks();
  CheckCounts();
  std::vector<const Request*> all;
  for (const auto& [id, r] : requests_) all.push_back(r.get());
  for (const auto& r : leaving_) all.push_back(r.get());
  reservations_.CheckIntegrity(all);
}

void SchedulerImpl::CheckBlocks() const {
  std::vector<const kv::BlockTable*> device, host;
  for (const auto& [id, r] : requests_) {
    for (const Sequence& s : r->sequences) {
      device.push_back(&s.table);
      host.push_back(&s.host_table);
      const bool on_host = r->state == RequestState::kSwapped;
      const auto& table = on_host ? s.host_table : s.table;
      MR_CHECK(kv_.BlocksFor(s.computed) <= std::ssize(table) || !s.live())
          << "sequence " << s.id << " has computed " << s.computed << " tokens in " << table.size()
          << " blocks";
      MR_CHECK((on_host ? s.table : s.host_table).empty());
      MR_CHECK(s.live() || s.table.empty());
      const bool has_blocks =
          r->state == RequestState::kRunning || r->state == RequestState::kPulling;
      MR_CHECK(!s.waits_with_table() || (r->sharing_prompt && has_blocks))
          << "sequence " << s.id << " waits for a prompt that no sequence computes";
      MR_CHECK(s.sent_blocks <= std::ssize(s.table) || !s.live());
      MR_CHECK(!s.live() || s.computed < r->TotalOf(s))
          << "sequence " << s.id << " has no tokens left to compute";
    }
  }
  kv_.CheckIntegrity(device, host);
}

void SchedulerImpl::CheckCounts() const {
  MR_CHECK(steps_in_flight() <= options_.stages);
  std::unordered_map<const Request*, int> in_flight;
  for (const LedgerStep& step : ledger_) {
    for (const LedgerEntry& entry : step.entries) {
      ++in_flight[entry.sequence->request];
      MR_CHECK(entry.sequence->in_flight == step.id)
          << "sequence " << entry.id << " is in two steps";
    }
  }
  for (const auto& r : leaving_) {
    MR_CHECK(r->in_flight > 0 && r->in_flight == in_flight[r.get()] && r->live() == 0)
        << "request " << r->spec.id << " was detached but no step in flight holds it";
  }
  for (const auto& [key, r] : pulling_) {
    MR_CHECK(pulls_.due(r->spec.id) || r->import.open)
        << "request " << r->spec.id << " is pulling without a pending pull";
  }
  int promised = 0, sequences = 0, pulling = 0;
  size_t queued = 0;
  for (const auto& [id, r] : requests_) {
    MR_CHECK(r->in_flight == in_flight[r.get()])
        << "request " << id << " has a wrong count of steps in flight";
    promised += r->promised_blocks;
    if (r->state == RequestState::kRunning) sequences += r->live();
    if (r->state == RequestState::kPulling) pulling += r->live();
    queued += r->state == RequestState::kFinished ? 0 : 1;
  }
  MR_CHECK(promised == promised_blocks_);
  MR_CHECK(sequences == running_sequences_ && pulling == pulling_sequences_);
  MR_CHECK(queued == running_.size() + pulling_.size() + waiting_.size())
      << "a request is in no queue";
  MR_CHECK(std::ranges::is_sorted(running_, {}, &Request::key));
}

}  // namespace millrace::sched
