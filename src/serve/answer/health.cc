#include "serve/answer/health.h"

#include <fmt/format.h>

#include "serve/answer/response.h"
#include "serve/http/api_error.h"

namespace millrace::serve {
namespace {

std::string WaitsFor(const sched::RequestInfo& stalled) {
  return stalled.waits_for.empty() ? "nothing" : stalled.waits_for;
}

net::HttpResponse Stalled(const sched::RequestInfo& stalled, const std::string& id) {
  ApiError error =
      Unready(fmt::format("Request {} ({}) could run but makes no progress; it waits for: {}.",
                          stalled.id.value(), id, WaitsFor(stalled)));
  error.code = "stalled";
  return JsonResponse({{"status", "stalled"},
                       {"request", stalled.id.value()},
                       {"waits_for", stalled.waits_for},
                       {"age_s", stalled.age.seconds()},
                       {"error", ErrorBody(error)["error"]}},
                      503);
}

}  // namespace

net::HttpResponse HealthAnswer(const cluster::GeneratorStats& stats,
                               const std::string& stalled_id) {
  if (stats.stalled && stats.stalled_at.empty()) return Stalled(*stats.stalled, stalled_id);
  Json body = {{"status", "ok"}};
  if (stats.stalled) {
    body["stalled"] = {{"request", stats.stalled->id.value()},
                       {"age_s", stats.stalled->age.seconds()},
                       {"waits_for_workers", stats.stalled_at}};
  }
  for (const cluster::StillWorker& worker : stats.still_workers) {
    body["restart_workers"].push_back(
        {{"name", worker.name},
         {"reason", worker.reason},
         {"message",
          fmt::format("Restart the process of worker {}, not this controller.", worker.name)}});
  }
  return JsonResponse(body);
}

}  // namespace millrace::serve
