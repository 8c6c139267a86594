#include "sched/step_room.h"

#include <algorithm>

namespace millrace::sched {
namespace {

// A sequence is in one step at a time: if the first step took all, the other stages would wait for
// it. So a step takes an even share of all sequences, and of the ready ones among the steps that
// may still be issued. No sequence is skipped for long: once all steps in flight have their share,
// the rest fits into the next.
int SequencesPerStep(const SchedulerOptions& options, const RequestTable& requests,
                     const StepLedger& ledger) {
  if (!options.even_steps || options.stages == 1) return options.max_num_seqs;
  const auto share = [](int64_t sequences, int64_t steps) {
    return (sequences + steps - 1) / steps;
  };
  const int64_t sequences = requests.running_sequences() + std::ssize(requests.waiting());
  int64_t at_hand = sequences;
  for (const StepLedger::Step& step : ledger.steps()) at_hand -= std::ssize(step.entries);
  const int64_t even =
      std::min(share(sequences, options.stages), share(at_hand, options.stages - ledger.size()));
  return static_cast<int>(std::clamp<int64_t>(even, 1, options.max_num_seqs));
}

int TokensPerStep(const SchedulerOptions& options, const StepLimits& limits,
                  const RequestTable& requests, const StepLedger& ledger) {
  const int most = options.max_num_batched_tokens;
  if (!limits.tokens_beside_decodes) return most;
  int decodes = 0;
  for (const Request* r : requests.running()) decodes += r->ReadyDecodes();
  if (decodes == 0 && ledger.size() == 0) return most;
  return std::min(most, std::max(*limits.tokens_beside_decodes, decodes + options.block_size));
}

}  // namespace

StepRoom RoomOfNextStep(const SchedulerOptions& options, const StepLimits& limits,
                        const RequestTable& requests, const StepLedger& ledger) {
  StepRoom room{.tokens = TokensPerStep(options, limits, requests, ledger),
                .sequences = SequencesPerStep(options, requests, ledger)};
  room.tokens_in_all = room.tokens;
  return room;
}

// The second stage has no work until the first has finished a step, so each step starts only a few
// of many prompts.
int64_t PromptsPerStep(const SchedulerOptions& options, const RequestTable& requests) {
  const int64_t waiting = std::ssize(requests.waiting());
  if (!options.even_steps || options.stages == 1) return waiting;
  const int64_t steps = int64_t{kFillSteps} * options.stages;
  return (waiting + steps - 1) / steps;
}

}  // namespace millrace::sched
