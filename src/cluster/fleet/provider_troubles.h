// ProviderTroubles: what a provider fails to do now, for one kind of machine. A failure is logged
// once, whichever call it is of, and the call is tried again after a back-off that doubles.
//
// Owned by FleetMachines. Pure: times are arguments. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace millrace::cluster {

enum class ProviderCall : uint8_t { kPrice, kList, kRelease, kAcquire };

class ProviderTroubles {
 public:
  // Return what is to be logged. nullopt: it was logged, or the provider still fails.
  std::optional<std::string> Failed(ProviderCall call, const std::string& text, Time now);
  std::optional<std::string> Succeeded(ProviderCall call);

  bool Fails(ProviderCall call) const { return !Of(call).text.empty(); }
  // The call is not to be tried earlier.
  Time RetryAt(ProviderCall call) const { return Of(call).until; }
  // That of the last call, in the order of ProviderCall, which fails. "": none does.
  std::string Text() const;

 private:
  struct Trouble {
    std::string text;  // empty: none
    int failures = 0;  // in a row
    Time until;        // not before
  };
  const Trouble& Of(ProviderCall call) const { return all_[static_cast<size_t>(call)]; }

  std::array<Trouble, 4> all_;  // by ProviderCall
};

}  // namespace millrace::cluster
