#include "apps/cluster/live_cluster.h"

#include <chrono>
#include <thread>

#include "apps/cluster/machines_view.h"

namespace millrace::apps {
namespace {

constexpr std::chrono::milliseconds kAskAgainEvery{500};

}  // namespace

Result<std::string> FetchClusterFile(const AdminFlags& flags, Duration wait) {
  MR_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(flags));
  const SteadyClock clock;
  const Time end = clock.Now() + wait;
  while (true) {
    MR_ASSIGN_OR_RETURN(const Json answer, client.Get("/cluster/machines"));
    const MachinesView view = ReadMachinesView(answer);
    const bool complete = !view.machines.empty() && IsComplete(view);
    if (complete || clock.Now() >= end) return FormatClusterFile(view);
    std::this_thread::sleep_for(kAskAgainEvery);
  }
}

}  // namespace millrace::apps
