// vLLM at the time of its paper: a step computes only prompts if one can start, and only decodes
// otherwise. Prompts start sooner, and all decodes wait meanwhile.
#include "sched/scheduler_impl.h"

namespace millrace::sched {
namespace {

// After this many steps of prompts there is one of decodes. Otherwise a stream of short answers
// could keep the oldest request waiting forever.
constexpr int kPromptStepsMax = 16;

}  // namespace

void SchedulerImpl::FillPrefillFirst(StepRoom& room, Time now) {
  if (prompt_steps_ >= kPromptStepsMax || decodes_short_) FillDecodes(room);
  if (!builder_.empty()) return;
  FillPrompts(room, now);
  if (builder_.empty()) FillDecodes(room);
}

// Prompts that were begun, then waiting ones. Requests that return from the host pool decode beside
// them.
void SchedulerImpl::FillPrompts(StepRoom& room, Time now) {
  room.decodes_behind = 0;
  for (size_t i = 0; i < requests_.running().size() && room.tokens > 0 && room.sequences > 0; ++i) {
    if (requests_.running()[i]->Prefills()) ScheduleRunning(i, room);
  }
  if (!room.blocked && room.preemptions.empty()) AdmitWaiting(room, now);
  ++prompt_steps_;
}

void SchedulerImpl::FillDecodes(StepRoom& room) {
  for (size_t i = 0; i < requests_.running().size() && room.tokens > 0 && room.sequences > 0; ++i) {
    if (!requests_.running()[i]->Prefills()) ScheduleRunning(i, room);
  }
  decodes_short_ = room.blocked || !room.preemptions.empty();
  prompt_steps_ = 0;
}

}  // namespace millrace::sched
