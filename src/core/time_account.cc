#include "core/time_account.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

static_assert(kAccountEntriesMax > kTimeUses, "two of a full account have the same use");

void Add(TimeEntry& to, const TimeEntry& more) {
  if (to.cause != more.cause) to.cause = TimeCause::kSeveral;
  to.took = to.took + more.took;
  to.steps += more.steps;
  to.tokens += more.tokens;
  to.others_tokens += more.others_tokens;
  to.others = std::max(to.others, more.others);
  to.running = std::max(to.running, more.running);
  to.bytes += more.bytes;
  to.pull_s += more.pull_s;
  if (to.from != more.from) to.from.clear();
  if (to.layers != more.layers) to.layers = {};
}

}  // namespace

std::string_view TimeUseName(TimeUse use) {
  switch (use) {
    case TimeUse::kPrepare: return "prepare";
    case TimeUse::kQueue: return "queue";
    case TimeUse::kPrefill: return "prefill";
    case TimeUse::kDecode: return "decode";
    case TimeUse::kRecompute: return "recompute";
    case TimeUse::kWait: return "wait";
    case TimeUse::kPreempted: return "preempted";
    case TimeUse::kSwapped: return "swapped";
    case TimeUse::kRequeue: return "requeue";
    case TimeUse::kPull: return "pull";
    case TimeUse::kDeliver: return "deliver";
  }
  return "";
}

std::string_view TimeCauseName(TimeCause cause) {
  switch (cause) {
    case TimeCause::kNone: return "";
    case TimeCause::kStep: return "step_in_flight";
    case TimeCause::kStepFull: return "step_full";
    case TimeCause::kBlocks: return "kv_blocks";
    case TimeCause::kSequences: return "max_num_seqs";
    case TimeCause::kReservation: return "kv_reservation";
    case TimeCause::kNoPipeline: return "no_pipeline";
    case TimeCause::kNoRoom: return "no_room";
    case TimeCause::kOtherBits: return "numeric_class";
    case TimeCause::kPrompts: return "prompts_of_others";
    case TimeCause::kTurn: return "steps_of_others";
    case TimeCause::kPaused: return "paused";
    case TimeCause::kPreemption: return "preemption";
    case TimeCause::kHandOver: return "hand_over";
    case TimeCause::kLoss: return "pipeline_lost";
    case TimeCause::kMove: return "move";
    case TimeCause::kEviction: return "eviction";
    case TimeCause::kRestart: return "controller_restart";
    case TimeCause::kSeveral: return "several";
  }
  return "";
}

TimeEntry& TimeAccount::At(TimeUse use, TimeCause cause) {
  const auto fits = [&](const TimeEntry& entry) {
    return entry.use == use && entry.cause == cause;
  };
  if (current_ < entries_.size() && fits(entries_[current_])) return entries_[current_];
  for (size_t i = entries_.size(); i > episode_; --i) {
    if (!fits(entries_[i - 1])) continue;
    current_ = i - 1;
    return entries_[current_];
  }
  if (entries_.size() == kAccountEntriesMax) MergeTwo();
  current_ = entries_.size();
  TimeEntry& entry = entries_.emplace_back();
  entry.use = use;
  entry.cause = cause;
  entry.begin = until_;
  return entry;
}

TimeEntry& TimeAccount::Spend(TimeUse use, TimeCause cause, Time now, const Beside& beside) {
  TimeEntry& entry = At(use, cause);
  entry.others_tokens += beside.others_tokens;
  entry.others = std::max(entry.others, beside.others);
  if (beside.ids != nullptr && beside.ids->front() != RequestId()) entry.ids = *beside.ids;
  if (now <= until_) return entry;
  const Duration took = now - until_;
  entry.took = entry.took + took;
  until_ = now;
  if (took <= longest_) return entry;
  longest_ = took;
  longest_use_ = use;
  longest_cause_ = cause;
  longest_others_tokens_ = beside.others_tokens;
  longest_ids_ = beside.ids != nullptr ? *beside.ids : entry.ids;
  return entry;
}

void TimeAccount::Token(Duration gap, int tokens_before) {
  if (gap > Duration{}) {
    ++gaps_counted_;
    gaps_sum_ = gaps_sum_ + gap;
    const bool keeps = gaps_kept_ < kAccountGapsMax || gap > gaps_.back().took;
    if (keeps) {
      KeepGap(
          {gap, tokens_before, longest_use_, longest_cause_, longest_others_tokens_, longest_ids_});
    }
  }
  longest_ = {};
}

void TimeAccount::KeepGap(const TokenGap& gap) {
  gaps_kept_ = std::min<uint32_t>(gaps_kept_ + 1, kAccountGapsMax);
  size_t place = gaps_kept_ - 1;
  for (; place > 0 && gaps_[place - 1].took < gap.took; --place) gaps_[place] = gaps_[place - 1];
  gaps_[place] = gap;
}

// More entries than uses, so some use has two.
void TimeAccount::MergeTwo() {
  for (size_t later = 1; later < entries_.size(); ++later) {
    for (size_t first = 0; first < later; ++first) {
      if (entries_[first].use != entries_[later].use) continue;
      Add(entries_[first], entries_[later]);
      entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(later));
      if (later < episode_) --episode_;
      return;
    }
  }
}

void TimeAccount::CheckIntegrity() const {
  Duration sum;
  for (const TimeEntry& entry : entries_) sum = sum + entry.took;
  MR_CHECK(sum == until_ - begin_)
      << "an account of " << (until_ - begin_).ns << " ns has entries of " << sum.ns << " ns";
}

}  // namespace millrace
