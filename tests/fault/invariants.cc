#include "tests/fault/invariants.h"

namespace millrace::sim::fault {

std::string_view InvariantName(Invariant invariant) {
  constexpr std::array<std::string_view, kInvariants> kNames = {
      "blocks add up",
      "ends once",
      "ends in time",
      "tokens in order",
      "answer is whole",
      "no needless error",
      "fence",
      "one owner",
      "queues bounded",
      "no starvation",
      "members are sessions",
      "names grow",
      "stale is counted",
      "nothing left",
      "shards are planned",
      "plans run",
      "one class",
      "no fault, no loss",
      "decisions keep workers",
      "decisions fail no request",
  };
  return kNames[static_cast<size_t>(invariant)];
}

}  // namespace millrace::sim::fault
