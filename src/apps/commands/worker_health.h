// WorkerHealth: answers over HTTP whether a worker's batches move. GET /live: 200 unless its
// computing thread is stuck. GET /health: 200 if it is also connected to its controller. Otherwise
// 503 with what is wrong. A supervisor restarts a worker that is not live; one without a controller
// keeps its weights and joins again, so it must not be restarted for that.
//
// Owned by the worker's command, and destroyed before the worker.
#pragma once

#include <memory>
#include <string>

#include "apps/cli/command.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/worker/worker_host.h"
#include "net/http/http_server.h"

namespace millrace::apps {

struct HealthFlags {
  std::string listen;  // empty: no health routes
  double stuck_after_s = 120;
};
void AddHealthOptions(Command& command, const char* group, HealthFlags* flags);

// The answer to a request for `path`. Pure.
net::HttpResponse AnswerHealth(const std::string& path, bool connected,
                               const std::optional<cluster::ComputingSince>& computing,
                               Duration stuck_after, Time now);

class WorkerHealth {
 public:
  // Null without flags.listen.
  static Result<std::unique_ptr<WorkerHealth>> Start(const HealthFlags& flags,
                                                     const cluster::WorkerHost& host,
                                                     const Clock& clock);

 private:
  std::unique_ptr<net::HttpServer> server_;
};

}  // namespace millrace::apps
