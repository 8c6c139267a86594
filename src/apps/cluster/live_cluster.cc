#include "apps/cluster/live_cluster.h"

#include <fmt/format.h>

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
  std::string printed;
  while (true) {
    MR_ASSIGN_OR_RETURN(const Json answer, client.Get("/cluster/machines"));
    const MachinesView view = ReadMachinesView(answer);
    const std::string lacks = wait > Duration() ? Lacking(view) : "";
    if (lacks.empty()) return FormatClusterFile(view);
    if (clock.Now() >= end) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("after {} s: {}; wait longer, or leave out --wait to write what is "
                                "there",
                                wait.seconds(), lacks));
    }
    if (lacks != printed) fmt::print(stderr, "waiting: {}\n", lacks);
    printed = lacks;
    std::this_thread::sleep_for(kAskAgainEvery);
  }
}

}  // namespace millrace::apps
