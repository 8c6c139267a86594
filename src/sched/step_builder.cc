#include "sched/step_builder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"

namespace millrace::sched {

StepBuilder::StepBuilder(kv::KvCache& kv, StepLedger& ledger, IncomingPulls& pulls)
    : kv_(kv), ledger_(ledger), pulls_(pulls) {}

bool StepBuilder::Choose(Request& request, const StepRoom& room) {
  shares_.clear();
  if (request.pools && room.vectors == 0) return false;
  int tokens_left = room.tokens;
  for (Sequence& s : request.sequences) {
    if (tokens_left == 0 || std::ssize(shares_) == room.sequences) break;
    if (!s.ready()) continue;
    int target = request.TargetOf(s);
    if (s.lacks_layers()) target = std::min(target, s.lacking_until);
    const int chunk = ChunkOf(target - s.computed, tokens_left, room);
    shares_.push_back({&s, chunk});
    tokens_left -= chunk;
  }
  return !shares_.empty();
}

void StepBuilder::ChooseAll(Request& request) {
  shares_.clear();
  for (Sequence& s : request.sequences) {
    if (s.ready()) shares_.push_back({&s, std::max(1, request.TargetOf(s) - s.computed)});
  }
}

// A chunk of a prompt takes what the decodes behind it leave, but at least one block's worth, so
// that neither starves the other.
int StepBuilder::ChunkOf(int remaining, int tokens_left, const StepRoom& room) const {
  if (remaining == 1) return 1;
  const int fair = std::max(tokens_left - room.decodes_behind.value_or(0), kv_.block_size());
  return std::min({remaining, fair, tokens_left});
}

// If all tables that name a block are about to write it, one of them may keep it.
int StepBuilder::BlocksNeeded(bool on_host) const {
  const kv::BlockPool& pool = on_host ? kv_.host() : kv_.device();
  const auto table_of = [&](const Share& share) -> const kv::BlockTable& {
    return on_host ? share.sequence->host_table : share.sequence->table;
  };
  int needed = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const Sequence& s = *shares_[i].sequence;
    const kv::BlockTable& table = table_of(shares_[i]);
    const int end = s.computed + shares_[i].num_tokens;
    if (!kv_.Holds(table, end)) needed += kv_.BlocksFor(end) - static_cast<int>(table.size());
    if (s.request->sequences.size() == 1 || s.request->sharing_prompt) continue;
    const size_t written = s.computed / kv_.block_size();
    if (written >= table.size()) continue;
    const int refs = pool.refs(table[written].index);
    if (refs == 1) continue;
    int writers = 0;
    bool last = true;
    for (size_t j = 0; j < shares_.size(); ++j) {
      const kv::BlockTable& other = table_of(shares_[j]);
      const size_t w = shares_[j].sequence->computed / kv_.block_size();
      if (w >= other.size() || other[w] != table[written]) continue;
      ++writers;
      last = last && j <= i;
    }
    needed += (writers == refs && last) ? 0 : 1;
  }
  return needed;
}

void StepBuilder::Emit(Request& request, StepRoom& room) {
  request.verdict.reason = Verdict::Reason::kAdmitted;
  request.step_tokens = 0;
  StepLoad& load = ledger_.load();
  ++load.requests;
  for (const Share& share : shares_) {
    EmitShare(request, share);
    request.step_tokens += share.num_tokens;
    load.tokens += share.num_tokens;
    if (share.num_tokens > 1) load.AddPrompt(request.spec.id, share.num_tokens);
    room.tokens -= share.num_tokens;
    --room.sequences;
    room.vectors -= request.pools;
  }
}

// Copies the block that is about to be written if other tables name it too.
void StepBuilder::CopyBeforeWriting(Sequence& s) {
  const int written = s.computed / kv_.block_size();
  if (written >= std::ssize(s.table) || !kv_.MakeWritable(s.table, written, plan_.copies)) return;
  s.sent_blocks = std::min(s.sent_blocks, written);
  s.copied_by = ledger_.next();
  pulls_.NoteReads({&plan_.copies.back(), 1}, ledger_.next());
}

void StepBuilder::EmitShare(Request& request, const Share& share) {
  Sequence& s = *share.sequence;
  const int end = s.computed + share.num_tokens;
  // The prompt's blocks are written for all sequences that share it.
  if (request.sequences.size() > 1 && !request.sharing_prompt) CopyBeforeWriting(s);
  MR_CHECK(kv_.Holds(s.table, end) || kv_.Grow(s.table, end))
      << "request " << request.spec.id << " has no blocks for its step";
  if (!s.sent) {
    auto output = s.output.empty() ? nullptr : std::make_shared<std::vector<TokenId>>(s.output);
    plan_.started.push_back(
        {s.id, request.spec.params, s.seed, request.spec.prompt, std::move(output)});
    s.sent = true;
  }
  // Filled in place: building it on the stack and copying it would stall on store forwarding.
  SequenceStep& step = plan_.sequences.emplace_back();
  step.id = s.id;
  step.start = s.computed;
  step.num_tokens = share.num_tokens;
  step.first_token = static_cast<int32_t>(plan_.tokens.size());
  step.keep_blocks = s.sent_blocks;
  step.first_new_block = static_cast<int32_t>(plan_.blocks.size());
  if (share.num_tokens == 1 && s.computed >= request.prompt_tokens) {
    // index without the prompt
    plan_.tokens.push_back(s.output[s.computed - request.prompt_tokens]);
  } else {
    request.TokensOf(s).AppendTo(plan_.tokens, s.computed, share.num_tokens);
  }
  for (size_t i = s.sent_blocks; i < s.table.size(); ++i) plan_.blocks.push_back(s.table[i].index);
  step.num_new_blocks = static_cast<int32_t>(plan_.blocks.size()) - step.first_new_block;
  s.sent_blocks = static_cast<int>(s.table.size());
  const bool samples = end == request.TotalOf(s);
  if (s.lacks_layers()) {
    step.only_layers = s.lacking;
  } else if (request.WantsAllFrom(s.computed)) {
    step.logits = LogitsWanted::kAll;
  } else {
    step.logits = samples ? LogitsWanted::kLast : LogitsWanted::kNone;
  }
  StepLedger::Entry& entry = ledger_.Add();
  entry.sequence = &s;
  entry.id = s.id;
  entry.start = s.computed;
  entry.num_tokens = share.num_tokens;
  entry.incarnation = s.incarnation;
  entry.samples = samples;
  s.in_flight = ledger_.next();
  ++request.in_flight;
}

const StepPlan* StepBuilder::Send(Time now) {
  if (empty()) return nullptr;
  plan_.id = ledger_.Send(now);
  plan_.released.assign(released_.begin(), released_.end());
  released_.clear();
  plan_.swap_out.assign(swap_out_.begin(), swap_out_.end());
  swap_out_.clear();
  return &plan_;
}

size_t StepBuilder::SwapOut(std::span<const kv::SwapMove> moves) {
  const size_t before = swap_out_.size();
  MR_CHECK(kv_.SwapOut(moves, swap_out_)) << "the swap pool was counted wrong";
  const auto added = std::span(swap_out_).subspan(before);
  pulls_.NoteReads(added, ledger_.next());
  return added.size();
}

void StepBuilder::SwapIn(std::span<const kv::SwapMove> moves) {
  MR_CHECK(kv_.SwapIn(moves, plan_.swap_in)) << "admission counted the blocks wrong";
}

void StepBuilder::DropSwapsOut() {
  pulls_.DropReads(swap_out_, ledger_.next());
  swap_out_.clear();
}

}  // namespace millrace::sched
