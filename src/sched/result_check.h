// ResultCheck: what a result may contain, beyond what its type says. Results of other processes are
// checked, so that no client gets what no model would have computed.
//
// Private to this folder: owned by the scheduler. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/step_plan.h"
#include "sched/scheduler.h"
#include "sched/step_ledger.h"

namespace millrace::sched {

class ResultCheck {
 public:
  // The references outlive this object. No bounds: results are trusted. `eos`: tokens that may
  // always end an answer.
  ResultCheck(const std::optional<ResultBounds>& bounds, const std::vector<TokenId>& eos)
      : bounds_(bounds), eos_(eos) {}

  // What fails every sequence of a step with so many entries; ok: its results can be told apart, or
  // wrong() says why none of them is taken.
  Status StepError(const StepResult& result, size_t entries);
  // Whether this can be the result of the entry, whose sequence lives; otherwise wrong() says why
  // not. A result with an error is taken as it is. Null: those of its step cannot be told apart.
  bool Takes(const SequenceResult* result, const StepLedger::Entry& entry);

  // kInvalidArgument: why some result was not taken; ok: there was none.
  const Status& wrong() const { return wrong_; }

 private:
  const std::optional<ResultBounds>& bounds_;
  const std::vector<TokenId>& eos_;
  Status wrong_;
};

}  // namespace millrace::sched
