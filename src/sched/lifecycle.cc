// How sequences start together and end one by one: fork, hand-over, finish, abort, retire.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

RequestOutput& SchedulerImpl::AppendOutput(const Sequence& sequence,
                                           std::vector<RequestOutput>& outputs) const {
  RequestOutput& output = outputs.emplace_back();
  output.request = sequence.request->spec.id;
  output.index = sequence.index;
  output.cached_prompt_tokens = sequence.request->cached_prompt_tokens;
  return output;
}

void SchedulerImpl::Abort(RequestId id, std::optional<int> index, Time,
                          std::vector<RequestOutput>& outputs) {
  Request* r = Find(id);
  if (!r) return;
  // Without an index, no sequence is left to take over the prompt.
  if (!index) r->sharing_prompt = false;
  for (Sequence& s : r->sequences) {
    if (!s.live() || (index && *index != s.index)) continue;
    RequestOutput& output = AppendOutput(s, outputs);
    output.finish = FinishReason::kAbort;
    End(s, FinishReason::kAbort, output);
  }
}

// When the prompt is computed, the other sequences start at its last token, over the same blocks.
// They compute that token again to get their own logits, in a copy of its block (copy-on-write).
void SchedulerImpl::MaybeForkPrompt(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  if (!request.sharing_prompt || leader.computed < request.prompt_tokens) return;
  StartSiblings(request);
}

// Sequences whose KV was imported have a table, over the blocks that they share with the leader.
void SchedulerImpl::StartSiblings(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  for (Sequence& s : request.sequences) {
    if (!s.live() || s.started) continue;
    s.output.reserve(std::min(request.output_limit, kOutputReserveMax));
    if (s.waits_with_table()) {
      s.computed = std::max(s.computed, SharedBlocks(request) * options_.block_size);
    } else {
      s.table.reserve(leader.table.capacity());
      const kv::BlockTable prompt(leader.table.begin(),
                                  leader.table.begin() + kv_.BlocksFor(request.prompt_tokens));
      kv_.Fork(prompt, s.table);
      s.computed = std::min(request.prompt_tokens, request.TotalOf(s) - 1);
    }
    s.started = true;
    s.computed_most = std::max(s.computed_most, s.computed);
    const int prompt_blocks = std::min(s.computed, request.prompt_tokens) / options_.block_size;
    const int indexed = std::min(leader.chain.indexed, prompt_blocks);
    s.chain.nodes.reserve(leader.chain.nodes.capacity());
    s.chain.root = leader.chain.root;
    s.chain.epoch = leader.chain.epoch;
    s.chain.nodes.assign(leader.chain.nodes.begin(), leader.chain.nodes.begin() + indexed);
    s.chain.indexed = indexed;
  }
  request.sharing_prompt = false;
  UpdatePromise(request);
}

void SchedulerImpl::DropSiblingTables(Request& request) {
  for (Sequence& s : request.sequences) {
    if (!s.live() || !s.waits_with_table()) continue;
    FreeBlocks(s);
    s.lacking_until = 0;
  }
}

// The leader ends before the prompt is computed: the next sequence takes over its blocks and the KV
// of a step in flight. The token that this step samples has the wrong seed and is not used.
void SchedulerImpl::HandOverPrompt(Sequence& leader) {
  Request& r = *leader.request;
  const auto next = std::ranges::find_if(r.sequences, &Sequence::live);
  MR_CHECK(next != r.sequences.end()) << "no sequence can take over the prompt";
  r.leader = next->index;
  r.sharing_prompt = r.live() > 1;
  next->started = std::exchange(leader.started, false);
  next->computed = std::min(std::exchange(leader.computed, 0), r.TotalOf(*next) - 1);
  next->computed_most =
      std::max(next->computed_most, std::min(leader.computed_most, r.prompt_tokens));
  next->output.reserve(std::min(r.output_limit, kOutputReserveMax));
  // The imported prompt is for all sequences; each recomputes its own KV.
  next->lacking_until =
      std::min({std::exchange(leader.lacking_until, 0), r.prompt_tokens, r.TotalOf(*next) - 1});
  next->lacking = leader.lacking;
  FreeBlocks(*next);
  next->table = std::exchange(leader.table, {});
  next->host_table = std::exchange(leader.host_table, {});
  next->chain = std::exchange(leader.chain, {});
  // Hashes beyond the prompt would be of the leader's own output.
  const size_t prompt_blocks = r.prompt_tokens / options_.block_size;
  if (next->chain.nodes.size() > prompt_blocks) next->chain.nodes.resize(prompt_blocks);
  next->in_flight = std::exchange(leader.in_flight, std::nullopt);
  if (!next->in_flight) return;
  const auto step = std::ranges::find(ledger_, *next->in_flight, &LedgerStep::id);
  const auto entry = std::ranges::find(step->entries, &leader, &LedgerEntry::sequence);
  // An entry whose KV was dropped meanwhile stays unusable.
  const bool worthless = entry->incarnation != leader.incarnation;
  entry->sequence = &*next;
  entry->incarnation = worthless ? next->incarnation - 1 : next->incarnation;
  entry->samples = false;
}

// `output` is the sequence's last; the request's last output carries its times.
void SchedulerImpl::End(Sequence& sequence, FinishReason reason, RequestOutput& output) {
  Request& r = *sequence.request;
  sequence.finish = reason;
  if (r.state == RequestState::kRunning) --running_sequences_;
  if (r.state == RequestState::kPulling) --pulling_sequences_;
  if (sequence.sent && !sequence.in_flight) released_.push_back(sequence.id);
  if (r.sharing_prompt) {
    if (sequence.index == r.leader) HandOverPrompt(sequence);
    r.sharing_prompt = r.live() > 1;
  }
  IndexPrefixes(sequence);
  HoldKv(sequence);
  FreeBlocks(sequence);
  UpdatePromise(r);
  if (r.live() > 0) return;
  ++(output.finish ? stats_.requests_finished[static_cast<int>(reason)] : stats_.requests_detached);
  output.times = r.times;
  Retire(r);
}

void SchedulerImpl::FreeBlocks(Sequence& sequence) {
  kv_.Free(sequence.table, sequence.in_flight);
  kv_.FreeHost(sequence.host_table);
}

void SchedulerImpl::LeaveQueue(Request& request) {
  if (request.state == RequestState::kRunning) {
    StopRunning(request);
  } else if (request.state == RequestState::kPulling) {
    pulling_.erase(request.key);
    pulling_sequences_ -= request.live();
  } else {
    waiting_.erase(request.key);
  }
  request.state = RequestState::kFinished;
}

void SchedulerImpl::Retire(Request& request) {
  LeaveQueue(request);
  UpdatePromise(request);
  if (request.in_flight == 0) Reap(request);
}

// A reservation ends only here, because a step in flight may still use its blocks.
void SchedulerImpl::Reap(Request& request) {
  reservations_.Release(request);
  if (request.detached) {
    const auto place = std::ranges::find(leaving_, &request, &std::unique_ptr<Request>::get);
    buried_.push_back(std::move(*place));
    leaving_.erase(place);
    return;
  }
  auto node = requests_.extract(request.spec.id);
  buried_.push_back(std::move(node.mapped()));
}

}  // namespace millrace::sched
