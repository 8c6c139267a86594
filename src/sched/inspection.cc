#include "sched/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/check.h"

namespace millrace::sched {
namespace {

std::string WaitReason(const SchedulerView& view, const Request& request) {
  if (request.state == RequestState::kFinished) return "";
  if (request.paused) return "its hand-over to another scheduler";
  if (request.state == RequestState::kPulling) {
    return fmt::format("{} of {} tokens from another stage",
                       view.pulls.due(request.spec.id) ? "the KV" : "more than the KV",
                       request.sequences[request.leader].lacking_until);
  }
  if (request.state == RequestState::kRunning) {
    if (request.verdict.reason != Verdict::Reason::kGrowth) return "";
    return fmt::format("KV blocks to go on: it needs {} more, {} of {} are available",
                       request.verdict.needed, request.verdict.available, view.options.num_blocks);
  }
  const RequestTable::Queue& waiting = view.requests.waiting();
  const auto place = waiting.find(request.key);
  if (request.queued && request.verdict.reason == Verdict::Reason::kNotTried) {
    return fmt::format(
        "its turn: of the clients of {} waiting requests, the one that was served the fewest "
        "tokens is next",
        waiting.size());
  }
  if (!request.queued && place != waiting.begin()) {
    return fmt::format("its turn: {} requests are before it in the queue, first request {}",
                       std::distance(waiting.begin(), place),
                       waiting.begin()->second->spec.id.value());
  }
  const Verdict& v = request.verdict;
  switch (v.reason) {
    case Verdict::Reason::kNotTried:
    case Verdict::Reason::kAdmitted:
    case Verdict::Reason::kGrowth:
      return view.ledger.size() >= view.options.stages
                 ? fmt::format("a step to end: {} of {} are in flight", view.ledger.size(),
                               view.options.stages)
                 : "the next step";
    case Verdict::Reason::kStepInFlight: return "the step it was in when it was preempted";
    case Verdict::Reason::kPreemptedThisStep: return "the step after the one that preempted it";
    case Verdict::Reason::kSequences:
      return fmt::format("a place: it has {} sequences and {} more may run", v.needed,
                         std::max(v.available, 0));
    case Verdict::Reason::kReservation:
      return fmt::format("KV blocks: it reserves {} and {} of {} are not reserved", v.needed,
                         v.available, view.options.num_blocks);
    case Verdict::Reason::kChunks:
      return fmt::format(
          "KV blocks: it reserves {} run{} of {} adjacent ones "
          "and {} such {} free ({} of {} "
          "blocks "
          "are not reserved)",
          request.spec.params->n, request.spec.params->n == 1 ? "" : "s", v.needed, v.available,
          v.available == 1 ? "is" : "are", v.headroom, view.options.num_blocks);
    case Verdict::Reason::kBlocks:
      return fmt::format(
          "KV blocks: it needs {}, {} of {} are available, and {} "
          "are kept for running "
          "requests ({} come free with steps in flight)",
          v.needed, std::max(view.kv.available() - view.promised_blocks, 0),
          view.options.num_blocks, v.headroom, view.kv.soon_available() - view.kv.available());
  }
  return "";
}

void CheckBlocks(const SchedulerView& view) {
  std::vector<const kv::BlockTable*> device, host;
  for (const auto& [id, r] : view.requests.all()) {
    for (const Sequence& s : r->sequences) {
      device.push_back(&s.table);
      host.push_back(&s.host_table);
      const bool on_host = r->state == RequestState::kSwapped;
      const auto& table = on_host ? s.host_table : s.table;
      MR_CHECK(view.kv.BlocksFor(s.computed) <= std::ssize(table) || !s.live())
          << "sequence " << s.id << " has computed " << s.computed << " tokens in " << table.size()
          << " blocks";
      MR_CHECK((on_host ? s.table : s.host_table).empty());
      MR_CHECK(s.live() || s.table.empty());
      const bool has_blocks =
          r->state == RequestState::kRunning || r->state == RequestState::kPulling;
      MR_CHECK(!s.waits_with_table() || (r->sharing_prompt && has_blocks))
          << "sequence " << s.id << " waits for a prompt that no sequence computes";
      MR_CHECK(s.sent_blocks <= std::ssize(s.table) || !s.live());
      MR_CHECK(!s.live() || s.offered || s.computed < r->TotalOf(s))
          << "sequence " << s.id << " has no tokens left to compute";
    }
  }
  view.kv.CheckIntegrity(device, host);
}

void CheckCounts(const SchedulerView& view) {
  MR_CHECK(view.ledger.size() <= view.options.stages);
  std::unordered_map<const Request*, int> in_flight;
  for (const StepLedger::Step& step : view.ledger.steps()) {
    for (const StepLedger::Entry& entry : step.entries) {
      ++in_flight[entry.sequence->request];
      MR_CHECK(entry.sequence->in_flight == step.id)
          << "sequence " << entry.id << " is in two steps";
    }
  }
  for (const auto& r : view.requests.leaving()) {
    MR_CHECK(r->in_flight > 0 && r->in_flight == in_flight[r.get()] && r->live() == 0)
        << "request " << r->spec.id << " was detached but no step in flight holds it";
  }
  for (const auto& [key, r] : view.requests.pulling()) {
    MR_CHECK(view.pulls.due(r->spec.id) || r->import.open)
        << "request " << r->spec.id << " is pulling without a pending pull";
  }
  int promised = 0;
  for (const auto& [id, r] : view.requests.all()) {
    MR_CHECK(r->in_flight == in_flight[r.get()])
        << "request " << id << " has a wrong count of steps in flight";
    promised += r->promised_blocks;
  }
  MR_CHECK(promised == view.promised_blocks);
}

}  // namespace

void CountNow(const SchedulerView& view, SchedulerStats& stats) {
  const kv::BlockPool& device = view.kv.device();
  stats.swapped = view.requests.swapped();
  stats.waiting = static_cast<int>(view.requests.waiting().size()) - stats.swapped;
  stats.pulling = static_cast<int>(view.requests.pulling().size());
  stats.running = static_cast<int>(view.requests.running().size());
  for (const Request* r : view.requests.running()) {
    for (const Sequence& s : r->sequences) {
      if (!s.live()) continue;
      stats.tokens_computed += s.computed;
      stats.tokens_to_come += r->output_limit - std::ssize(s.output);
    }
    stats.tokens_promised += int64_t{r->spec.params->n} *
                             view.reservations.SlotsEach(r->spec, r->output_limit).value_or(0);
  }
  stats.blocks_total = device.limit();
  stats.blocks_free = device.available();
  stats.blocks_cached = device.count(kv::BlockState::kCached);
  stats.blocks_pending = device.count(kv::BlockState::kPendingFree);
  stats.blocks_pinned = device.count(kv::BlockState::kPinned);
  stats.blocks_reserved = view.reservations.blocks();
  stats.host_blocks_used = view.kv.host().count(kv::BlockState::kOwned);
}

RequestInfo InfoOf(const SchedulerView& view, const Request& request, Time now) {
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
  info.waits_for = WaitReason(view, request);
  return info;
}

std::vector<RequestInfo> InfoOfAll(const SchedulerView& view, Time now) {
  std::vector<RequestInfo> infos;
  for (const Request* r : view.requests.running()) infos.push_back(InfoOf(view, *r, now));
  for (const auto& [key, r] : view.requests.pulling()) infos.push_back(InfoOf(view, *r, now));
  for (const auto& [key, r] : view.requests.waiting()) infos.push_back(InfoOf(view, *r, now));
  return infos;
}

std::optional<RequestInfo> StalledIn(const SchedulerView& view, Time now) {
  if (view.requests.empty() || now - view.last_moved <= view.options.watchdog) return std::nullopt;
  // A request in the oldest step in flight, else the first in order.
  if (!view.ledger.empty()) {
    for (const StepLedger::Entry& entry : view.ledger.steps().front().entries) {
      if (entry.sequence->live()) return InfoOf(view, *entry.sequence->request, now);
    }
  }
  // A pulling or paused request depends on the caller that hands it over, which has its own
  // deadline.
  for (const Request* r : view.requests.running()) {
    if (!r->paused) return InfoOf(view, *r, now);
  }
  if (!view.requests.pulling().empty()) return std::nullopt;
  for (const auto& [key, r] : view.requests.waiting()) {
    if (!r->paused) return InfoOf(view, *r, now);
  }
  return std::nullopt;
}

void CheckIntegrityOf(const SchedulerView& view) {
  view.requests.CheckIntegrity();
  CheckBlocks(view);
  CheckCounts(view);
  std::vector<const Request*> reserving;
  for (const auto& [id, r] : view.requests.all()) reserving.push_back(r.get());
  for (const auto& r : view.requests.leaving()) reserving.push_back(r.get());
  view.reservations.CheckIntegrity(reserving);
}

}  // namespace millrace::sched
