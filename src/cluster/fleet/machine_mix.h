// MachineMix: how many machines of each kind carry a load for the fewest USD per hour, within each
// kind's limits and a budget (SpotServe, Algorithm 1, lines 6 to 9, for any number of kinds). Spot
// machines come first because they cost less; on-demand machines are the first to be released.
//
// Pure functions of values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::cluster {

// A kind of machine and how many there are.
struct KindStanding {
  double requests_per_s = 1;        // that one machine answers; positive
  std::optional<double> usd_per_h;  // of one machine; unset: not known, which is not zero
  bool spot = false;
  int min = 0, max = 0;
  int counted = 0;         // machines that serve, or that are expected in time
  int committed = 0;       // machines that cost money: those counted, late ones, those that drain
  bool obtainable = true;  // machines can be asked for now
};

struct MixNeed {
  double requests_per_s = 0;
  int spares = 0;  // the need is met without so many of the largest machines
  std::optional<double> budget_usd_per_h;
};

enum class MixShortage : uint8_t {
  kNone,
  kLimits,  // every kind is at its maximum
  kBudget,  // another machine would cost more than the budget
  kPrice    // there is a budget, and the machines that are left have no price
};

struct MixAnswer {
  std::vector<int> machines;  // by kind
  MixShortage shortage = MixShortage::kNone;
};

// The machines to ask for beside those that are counted. Kinds that are not obtainable get none.
MixAnswer MachinesToAdd(const std::vector<KindStanding>& kinds, const MixNeed& need);

// The mix that one would have if one began anew. A kind that is not obtainable may keep what it
// has.
MixAnswer CheapestMix(std::vector<KindStanding> kinds, const MixNeed& need);

// Whether the machines that are counted are enough.
bool Carries(const std::vector<KindStanding>& kinds, const MixNeed& need);

// The kind of which one machine is not needed: the dearest for what it does. nullopt: every machine
// is needed.
std::optional<size_t> KindToRelease(const std::vector<KindStanding>& kinds, const MixNeed& need);

// The dearest kind that has more than its minimum, whether or not its machines are needed.
std::optional<size_t> DearestKind(const std::vector<KindStanding>& kinds);

// Of the machines that are counted or committed, as far as their prices are known.
double CountedUsdPerHour(const std::vector<KindStanding>& kinds);
double CommittedUsdPerHour(const std::vector<KindStanding>& kinds);

}  // namespace millrace::cluster
