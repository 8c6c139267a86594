#include "cluster/fleet/fleet_types.h"

namespace millrace::cluster {

std::string_view FleetCauseName(FleetCause cause) {
  switch (cause) {
    case FleetCause::kMinimum: return "minimum";
    case FleetCause::kLoad: return "load";
    case FleetCause::kMachinesLost: return "machines lost";
    case FleetCause::kLate: return "machines late";
    case FleetCause::kPriceChanged: return "price changed";
    case FleetCause::kCheaper: return "cheaper mix";
    case FleetCause::kBudget: return "budget";
    case FleetCause::kOverDelivered: return "over-delivered";
    case FleetCause::kProvider: return "provider";
  }
  return "?";
}

}  // namespace millrace::cluster
