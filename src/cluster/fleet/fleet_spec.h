// FleetSpec: which kinds of machines a cluster may have, and how many: an operator's fleet.yaml
// (docs/fleet.md). Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace millrace::cluster {

// Who acquires and releases machines of a kind.
enum class FleetProvider {
  kNone,       // somebody else, who reads the metrics
  kExec,       // a command
  kKubernetes  // a StatefulSet
};

struct FleetKind {
  std::string name;
  FleetProvider provider = FleetProvider::kNone;
  std::string argument;             // the command; [NAMESPACE/]STATEFULSET
  std::optional<double> usd_per_h;  // of a machine; unset: not known, which is not zero
  bool spot = false;
  int min = 0, max = 0;
  double requests_per_s = 1;  // that one machine answers
  // How long a machine takes until its worker has joined. An order that takes longer no longer
  // counts, and other kinds take its place.
  Duration startup = Duration::Seconds(120);
  Duration timeout = Duration::Seconds(30);  // of a call of the provider
  std::string workers;  // the names of its workers begin so, unless the provider names them
};

// How the API server of Kubernetes is reached. Empty: as a pod reaches it.
struct KubernetesAccess {
  std::string endpoint, ca_file, token_file, name_space;
};

struct FleetSpec {
  static constexpr int kKindsMax = 16, kMachinesMax = 1024, kSparesMax = 64;
  static constexpr double kHeadroomMax = 10;

  std::vector<FleetKind> kinds;
  std::optional<double> budget_usd_per_h;
  // The time that a lower load, and a cheaper mix, must last before a machine is released; also the
  // time between two releases.
  Duration cool_down = Duration::Seconds(300);
  double headroom = 1.2;  // multiple of the load to carry
  int spares = 0;         // machines beyond the need
  KubernetesAccess kubernetes;
};

// Untrusted text. An error is one line, "NAME:LINE:COLUMN: what is wrong, what is allowed".
Result<FleetSpec> ParseFleetYaml(std::string_view text, std::string_view name);

// "none", "exec", "kubernetes".
std::string_view ProviderName(FleetProvider provider);

}  // namespace millrace::cluster
