#include "cluster/fleet/machine_mix.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace millrace::cluster {
namespace {

constexpr double kUnknownPrice = std::numeric_limits<double>::infinity();
constexpr double kRoundingShare = 1e-9;  // sums of prices and rates are not exact

// What the machines answer without the `spares` largest of them.
double RateWithoutSpares(const std::vector<KindStanding>& kinds, int spares) {
  std::vector<const KindStanding*> largest;
  for (const KindStanding& kind : kinds) largest.push_back(&kind);
  std::ranges::stable_sort(largest, std::ranges::greater(), &KindStanding::requests_per_s);
  double rate = 0;
  for (const KindStanding* kind : largest) {
    const int left_out = std::min(spares, kind->counted);
    spares -= left_out;
    rate += (kind->counted - left_out) * kind->requests_per_s;
  }
  return rate;
}

// What a machine costs for what it does of `missing` requests per second, and, between equals, spot
// machines first.
std::tuple<double, bool> Dearness(const KindStanding& kind, double missing) {
  const double does = std::min(kind.requests_per_s, missing);
  return {kind.usd_per_h.value_or(kUnknownPrice) / does, !kind.spot};
}

MixShortage WhyNotOneMore(const KindStanding& kind, const MixNeed& need, double committed_usd) {
  if (kind.committed >= kind.max) return MixShortage::kLimits;
  if (!need.budget_usd_per_h) return MixShortage::kNone;
  if (!kind.usd_per_h) return MixShortage::kPrice;
  const double most = *need.budget_usd_per_h * (1 + kRoundingShare);
  return committed_usd + *kind.usd_per_h > most ? MixShortage::kBudget : MixShortage::kNone;
}

}  // namespace

bool Carries(const std::vector<KindStanding>& kinds, const MixNeed& need) {
  return RateWithoutSpares(kinds, need.spares) >= need.requests_per_s * (1 - kRoundingShare);
}

MixAnswer MachinesToAdd(const std::vector<KindStanding>& before, const MixNeed& need) {
  std::vector<KindStanding> kinds = before;
  MixAnswer answer{.machines = std::vector<int>(kinds.size(), 0)};
  double committed_usd = CommittedUsdPerHour(kinds);
  const auto add = [&](size_t k) {
    ++answer.machines[k];
    ++kinds[k].counted;
    ++kinds[k].committed;
    committed_usd += kinds[k].usd_per_h.value_or(0);
  };
  for (size_t k = 0; k < kinds.size(); ++k) {
    while (kinds[k].counted < kinds[k].min && kinds[k].obtainable &&
           WhyNotOneMore(kinds[k], need, committed_usd) == MixShortage::kNone) {
      add(k);
    }
  }
  while (!Carries(kinds, need)) {
    const double missing = need.requests_per_s - RateWithoutSpares(kinds, need.spares);
    std::optional<size_t> best;
    MixShortage shortage = MixShortage::kLimits;
    for (size_t k = 0; k < kinds.size(); ++k) {
      if (!kinds[k].obtainable) continue;
      const MixShortage why = WhyNotOneMore(kinds[k], need, committed_usd);
      shortage = std::max(shortage, why);
      if (why != MixShortage::kNone) continue;
      if (!best || Dearness(kinds[k], missing) < Dearness(kinds[*best], missing)) best = k;
    }
    if (!best) {
      answer.shortage = shortage;
      return answer;
    }
    add(*best);
  }
  return answer;
}

MixAnswer CheapestMix(std::vector<KindStanding> kinds, const MixNeed& need) {
  for (KindStanding& kind : kinds) {
    if (!kind.obtainable) kind.max = std::min(kind.max, kind.counted);
    kind.obtainable = true;
    kind.counted = kind.committed = 0;
  }
  return MachinesToAdd(kinds, need);
}

std::optional<size_t> DearestKind(const std::vector<KindStanding>& kinds) {
  std::optional<size_t> dearest;
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (kinds[k].counted <= kinds[k].min) continue;
    if (!dearest || Dearness(kinds[k], kUnknownPrice) > Dearness(kinds[*dearest], kUnknownPrice)) {
      dearest = k;
    }
  }
  return dearest;
}

std::optional<size_t> KindToRelease(const std::vector<KindStanding>& kinds, const MixNeed& need) {
  std::vector<KindStanding> candidates = kinds;
  for (size_t k = 0; k < kinds.size(); ++k) {
    std::vector<KindStanding> without = kinds;
    --without[k].counted;
    if (kinds[k].counted == 0 || !Carries(without, need)) candidates[k].counted = 0;
  }
  return DearestKind(candidates);
}

double CountedUsdPerHour(const std::vector<KindStanding>& kinds) {
  double usd = 0;
  for (const KindStanding& kind : kinds) usd += kind.counted * kind.usd_per_h.value_or(0);
  return usd;
}

double CommittedUsdPerHour(const std::vector<KindStanding>& kinds) {
  double usd = 0;
  for (const KindStanding& kind : kinds) usd += kind.committed * kind.usd_per_h.value_or(0);
  return usd;
}

}  // namespace millrace::cluster
