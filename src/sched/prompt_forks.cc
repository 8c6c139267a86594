#include "sched/prompt_forks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sched {

int PromptForks::BlocksToCome(const Request& request) const {
  if (!request.sharing_prompt) return 0;
  int blocks = 0;
  for (const Sequence& s : request.sequences) {
    if (!s.live()) continue;
    const int counted =
        s.index == request.leader ? kv_.BlocksFor(request.prompt_tokens) : SharedBlocks(request);
    const int has = static_cast<int>(s.table.size() + s.host_table.size());
    blocks += std::max(0, kv_.BlocksFor(request.TotalOf(s)) - std::max(counted, has));
  }
  return blocks;
}

void PromptForks::UpdatePromise(Request& request) {
  promised_blocks_ -= request.promised_blocks;
  const bool has_blocks =
      request.state == RequestState::kRunning || request.state == RequestState::kPulling;
  request.promised_blocks = has_blocks ? BlocksToCome(request) : 0;
  promised_blocks_ += request.promised_blocks;
}

int PromptForks::SharedBlocks(const Request& request) const {
  return (request.prompt_tokens - 1) / kv_.block_size();
}

bool PromptForks::ImportsForked(const Request& request) const {
  const int least = std::max(SharedBlocks(request) * kv_.block_size(), 1);
  return request.sharing_prompt && std::ranges::all_of(request.sequences, [&](const Sequence& s) {
           return !s.live() || request.ImportedOf(s) >= least;
         });
}

void PromptForks::TakeTables(Request& request) {
  kv::BlockTable& all = request.sequences[request.leader].table;
  bool grown = kv_.Grow(all, request.sequences[request.leader].lacking_until);
  const kv::BlockTable shared(all.begin(), all.begin() + SharedBlocks(request));
  for (Sequence& s : request.sequences) {
    if (!s.live() || s.started) continue;
    s.lacking_until = request.ImportedOf(s);
    s.table.reserve(all.capacity());
    kv_.Fork(shared, s.table);
    grown = kv_.Grow(s.table, s.lacking_until) && grown;
  }
  MR_CHECK(grown) << "admission counted wrong for request " << request.spec.id;
}

void PromptForks::MaybeStart(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  if (!request.sharing_prompt || leader.computed < request.prompt_tokens) return;
  Start(request);
}

void PromptForks::Start(Request& request) {
  Sequence& leader = request.sequences[request.leader];
  for (Sequence& s : request.sequences) {
    if (!s.live() || s.started) continue;
    s.output.reserve(std::min(request.output_limit, kOutputReserveMax));
    if (s.waits_with_table()) {
      s.computed = std::max(s.computed, SharedBlocks(request) * kv_.block_size());
    } else {
      s.table.reserve(leader.table.capacity());
      const kv::BlockTable prompt(leader.table.begin(),
                                  leader.table.begin() + kv_.BlocksFor(request.prompt_tokens));
      kv_.Fork(prompt, s.table);
      s.computed = std::min(request.prompt_tokens, request.TotalOf(s) - 1);
    }
    s.started = true;
    s.computed_most = std::max(s.computed_most, s.computed);
    const int prompt_blocks = std::min(s.computed, request.prompt_tokens) / kv_.block_size();
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

void PromptForks::DropTables(Request& request) {
  for (Sequence& s : request.sequences) {
    if (!s.live() || !s.waits_with_table()) continue;
    FreeBlocks(kv_, s);
    s.lacking_until = 0;
  }
}

// All import their own KV, and the blocks that they share are in every table.
void PromptForks::LeadImport(Sequence& leader, Sequence& next) const {
  const int shared = SharedBlocks(*next.request);
  next.started = std::exchange(leader.started, false);
  next.computed = std::min(std::exchange(leader.computed, 0), shared * kv_.block_size());
  next.chain = std::exchange(leader.chain, {});
  next.chain.nodes.resize(std::min(next.chain.nodes.size(), static_cast<size_t>(shared)));
  next.chain.indexed = std::min(next.chain.indexed, shared);
}

Sequence& PromptForks::HandOver(Sequence& leader) {
  Request& r = *leader.request;
  const auto next = std::ranges::find_if(r.sequences, &Sequence::live);
  MR_CHECK(next != r.sequences.end()) << "no sequence can take over the prompt";
  r.leader = next->index;
  r.sharing_prompt = r.live() > 1;
  if (r.state == RequestState::kPulling && next->waits_with_table()) {
    LeadImport(leader, *next);
    return *next;
  }
  next->started = std::exchange(leader.started, false);
  next->computed = std::min(std::exchange(leader.computed, 0), r.TotalOf(*next) - 1);
  next->computed_most =
      std::max(next->computed_most, std::min(leader.computed_most, r.prompt_tokens));
  next->output.reserve(std::min(r.output_limit, kOutputReserveMax));
  // The imported prompt is for all sequences; each recomputes its own KV.
  next->lacking_until =
      std::min({std::exchange(leader.lacking_until, 0), r.prompt_tokens, r.TotalOf(*next) - 1});
  next->lacking = leader.lacking;
  FreeBlocks(kv_, *next);
  next->table = std::exchange(leader.table, {});
  next->host_table = std::exchange(leader.host_table, {});
  next->chain = std::exchange(leader.chain, {});
  // Hashes beyond the prompt would be of the leader's own output.
  const size_t prompt_blocks = r.prompt_tokens / kv_.block_size();
  if (next->chain.nodes.size() > prompt_blocks) next->chain.nodes.resize(prompt_blocks);
  next->in_flight = std::exchange(leader.in_flight, std::nullopt);
  return *next;
}

}  // namespace millrace::sched
