#include "core/step_plan.h"

namespace millrace {

void StepPlan::Clear() {
  started.clear();
  released.clear();
  sequences.clear();
  tokens.clear();
  blocks.clear();
  swap_out.clear();
  swap_in.clear();
  copies.clear();
}

}  // namespace millrace
