#include "sched/step_ledger.h"

#include "base/check.h"

namespace millrace::sched {

StepLedger::StepLedger(int stages) {
  steps_.reserve(static_cast<size_t>(stages));
  spare_.reserve(static_cast<size_t>(stages) + 1);
}

void StepLoad::AddPrompt(RequestId id, int size) {
  prompt_tokens += size;
  for (size_t i = 0; i < kAccountIdsMax; ++i) {
    if (size <= prompt_sizes[i]) continue;
    std::swap(size, prompt_sizes[i]);
    std::swap(id, prompts.ids[i]);
  }
}

StepId StepLedger::Send(Time now) {
  StepLoad& load = building_.load;
  load.sent = now;
  load.before = prompts_;
  if (load.prompt_tokens > 0) {
    prompts_ = {prompts_.tokens + static_cast<uint64_t>(load.prompt_tokens), load.prompts.ids};
  }
  const StepId id = building_.id = StepId(next_++);
  steps_.push_back(std::move(building_));
  building_ = {};
  if (!spare_.empty()) {
    building_ = std::move(spare_.back());
    spare_.pop_back();
  }
  return id;
}

std::optional<StepLedger::Step> StepLedger::Take(StepId id) {
  const auto found = std::ranges::find(steps_, id, &Step::id);
  if (found == steps_.end()) return std::nullopt;
  Step step = std::move(*found);
  steps_.erase(found);
  return step;
}

void StepLedger::Reuse(Step step) {
  step.entries.clear();
  step.load = {};
  spare_.push_back(std::move(step));
}

void StepLedger::HandOver(StepId step, const Sequence& from, Sequence& to) {
  const auto found = std::ranges::find(steps_, step, &Step::id);
  MR_CHECK(found != steps_.end()) << "step " << step << " is not in flight";
  const auto entry = std::ranges::find(found->entries, &from, &Entry::sequence);
  MR_CHECK(entry != found->entries.end()) << "step " << step << " does not hold " << from.id;
  const bool worthless = entry->incarnation != from.incarnation;
  entry->sequence = &to;
  entry->incarnation = worthless ? to.incarnation - 1 : to.incarnation;
  entry->samples = false;
}

}  // namespace millrace::sched
