// Builds the next step: each sequence with as many tokens as it lacks and the step has room for.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

const StepPlan* SchedulerImpl::Schedule(Time now, std::vector<KvPull>& pulls) {
  buried_.clear();
  if (steps_in_flight() >= options_.stages) return nullptr;
  kv_.device().SweepPins(now);
  plan_.Clear();
  lacks_blocks_ = false;
  StepRoom room{.tokens = options_.max_num_batched_tokens, .sequences = SequencesPerStep()};
  switch (options_.step_mix) {
    case StepMix::kMixed: FillMixed(room, now); break;
    case StepMix::kPrefillFirst: FillPrefillFirst(room, now); break;
  }
  const StepPlan* plan = Send(now);
  if (!plan) DropUnsentSwaps();
  pulls_.TakeReady(FirstInFlight(), pulls);
  return plan;
}

// A sequence is in one step at a time: if the first step took all, the other stages would wait for
// it. So a step takes an even share of all sequences, and of the ready ones among the steps that
// may still be issued. No sequence is skipped for long: once all steps in flight have their share,
// the rest fits into the next.
int SchedulerImpl::SequencesPerStep() const {
  if (!options_.even_steps || options_.stages == 1) return options_.max_num_seqs;
  const auto share = [](int64_t sequences, int64_t steps) {
    return (sequences + steps - 1) / steps;
  };
  const int64_t sequences = running_sequences_ + std::ssize(waiting_);
  int64_t at_hand = sequences;
  for (const LedgerStep& step : ledger_) at_hand -= std::ssize(step.entries);
  const int64_t even = std::min(share(sequences, options_.stages),
                                share(at_hand, options_.stages - steps_in_flight()));
  return static_cast<int>(std::clamp<int64_t>(even, 1, options_.max_num_seqs));
}

// Whether one of its sequences computes a prompt or replays after preemption.
bool SchedulerImpl::Prefills(const Request& request) {
  return !request.paused && std::ranges::any_of(request.sequences, [&](const Sequence& s) {
    return s.ready() && request.TargetOf(s) - s.computed > 1;
  });
}

void SchedulerImpl::ScheduleRunning(size_t position, StepRoom& room) {
  Request& r = *running_[position];
  if (room.decodes_behind) *room.decodes_behind -= ReadyDecodesOf(r);
  if (r.paused || r.in_flight == static_cast<int>(r.sequences.size())) return;
  if (Prefills(r) && !room.decodes_behind) {
    int behind = 0;
    for (size_t i = position + 1; i < running_.size(); ++i) behind += ReadyDecodesOf(*running_[i]);
    room.decodes_behind = behind;
  }
  CollectShares(r, room);
  if (shares_.empty()) return;
  if (const int blocks = SharesBlocksNeeded(/*on_host=*/false); blocks > 0) {
    if (room.blocked) return;
    const Grant grant = Obtain(r, blocks, room);
    if (grant == Grant::kWait) {
      room.blocked = lacks_blocks_ = true;
      r.verdict = {Verdict::Reason::kGrowth, blocks, kv_.available()};
    }
    if (grant != Grant::kGranted) return;
  }
  Emit(r, room);
}

int SchedulerImpl::ReadyDecodesOf(const Request& request) {
  if (request.paused) return 0;
  return static_cast<int>(std::ranges::count_if(request.sequences, [&](const Sequence& s) {
    return s.ready() && request.TargetOf(s) - s.computed == 1;
  }));
}

// Chooses which of the request's sequences the step takes, and how many tokens of each.
void SchedulerImpl::CollectShares(Request& request, const StepRoom& room) {
  shares_.clear();
  int tokens_left = room.tokens;
  for (Sequence& s : request.sequences) {
    if (tokens_left == 0 || std::ssize(shares_) == room.sequences) return;
    if (!s.ready()) continue;
    int target = request.TargetOf(s);
    if (s.lacks_layers()) target = std::min(target, s.lacking_until);
    const int chunk = ChunkOf(target - s.computed, tokens_left, room);
    shares_.push_back({&s, chunk});
    tokens_left -= chunk;
  }
}

// A chunk of a prompt takes what the decodes behind it leave, but at least one block's worth, so
// that neither starves the other.
int SchedulerImpl::ChunkOf(int remaining, int tokens_left, const StepRoom& room) const {
  if (remaining == 1) return 1;
  const int fair = std::max(tokens_left - room.decodes_behind.value_or(0), options_.block_size);
  return std::min({remaining, fair, tokens_left});
}

// Blocks that shares_ need before they can run: growth, and copies of shared blocks that they
// write. If all tables that name a block are about to write it, one of them may keep it.
int SchedulerImpl::SharesBlocksNeeded(bool on_host) const {
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
    const size_t written = s.computed / options_.block_size;
    if (written >= table.size()) continue;
    const int refs = pool.refs(table[written].index);
    if (refs == 1) continue;
    int writers = 0;
    bool last = true;
    for (size_t j = 0; j < shares_.size(); ++j) {
      const kv::BlockTable& other = table_of(shares_[j]);
      const size_t w = shares_[j].sequence->computed / options_.block_size;
      if (w >= other.size() || other[w] != table[written]) continue;
      ++writers;
      last = last && j <= i;
    }
    needed += (writers == refs && last) ? 0 : 1;
  }
  return needed;
}

void SchedulerImpl::Emit(Request& request, StepRoom& room) {
  request.verdict.reason = Verdict::Reason::kAdmitted;
  for (const Share& share : shares_) {
    EmitShare(request, share);
    room.tokens -= share.num_tokens;
    --room.sequences;
  }
}

// Copies the block that is about to be written if other tables name it too.
void SchedulerImpl::CopyBeforeWriting(Sequence& s) {
  const int written = s.computed / options_.block_size;
  if (written >= std::ssize(s.table) || !kv_.MakeWritable(s.table, written, plan_.copies)) return;
  s.sent_blocks = std::min(s.sent_blocks, written);
  s.copied_by = StepId(next_step_);
  ++stats_.copied_blocks;
  pulls_.NoteReads({&plan_.copies.back(), 1}, StepId(next_step_));
}

void SchedulerImpl::EmitShare(Request& request, const Share& share) {
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
  } else if (request.WantsPromptLogprobs() && s.computed < request.prompt_tokens - 1) {
    step.logits = LogitsWanted::kAll;
  } else {
    step.logits = samples ? LogitsWanted::kLast : LogitsWanted::kNone;
  }
  LedgerEntry& entry = building_.entries.emplace_back();
  entry.sequence = &s;
  entry.id = s.id;
  entry.start = s.computed;
  entry.num_tokens = share.num_tokens;
  entry.incarnation = s.incarnation;
  entry.samples = samples;
  s.in_flight = StepId(next_step_);
  ++request.in_flight;
}

// Copies and releases without a step to travel in wait for the next step.
const StepPlan* SchedulerImpl::Send(Time now) {
  if (plan_.sequences.empty()) return nullptr;
  plan_.id = building_.id = StepId(next_step_++);
  plan_.released.assign(released_.begin(), released_.end());
  released_.clear();
  plan_.swap_out.assign(swap_out_.begin(), swap_out_.end());
  swap_out_.clear();
  ledger_.push_back(std::move(building_));
  building_ = {};
  if (!spare_.empty()) {
    building_ = std::move(spare_.back());
    spare_.pop_back();
  }
  ++stats_.steps;
  last_moved_ = now;
  return &plan_;
}

}  // namespace millrace::sched
