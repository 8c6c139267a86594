#include "apps/commands/worker_health.h"

#include <fmt/format.h>

#include <utility>

#include "base/host_port.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kHealthConnectionsMax = 64;
constexpr double kStuckAfterMax_s = 86400;

net::HttpResponse Answer(int status, const Json& body) {
  return {.status = status,
          .headers = {{"content-type", "application/json"}, {"cache-control", "no-store"}},
          .body = DumpJson(body) + "\n"};
}

net::HttpResponse Refuse(int status, const char* state, const std::string& message) {
  return Answer(status, {{"status", state}, {"error", {{"message", message}}}});
}

}  // namespace

void AddHealthOptions(Command& command, const char* group, HealthFlags* flags) {
  command.Add(group, AddressOption("health-listen", "ADDRESS", &flags->listen),
              "HOST:PORT for GET /health and GET /live: whether batches move [default: none]");
  command.Add(
      group,
      RealOption("health-stuck-after", "SECONDS", &flags->stuck_after_s, 1, kStuckAfterMax_s),
      "A batch that takes longer counts as stuck; it must be longer than the longest step");
}

net::HttpResponse AnswerHealth(const std::string& path, bool connected,
                               const std::optional<cluster::ComputingSince>& computing,
                               Duration stuck_after, Time now) {
  if (path != "/health" && path != "/live") {
    return Refuse(404, "unknown", "This port has GET /health and GET /live.");
  }
  const Duration busy = computing ? now - computing->since : Duration{};
  if (busy > stuck_after) {
    const std::string what =
        computing->what.empty()
            ? fmt::format("The computing thread has not taken up its work for {:.1f} s.",
                          busy.seconds())
            : fmt::format("The computing thread has not ended {} for {:.1f} s.", computing->what,
                          busy.seconds());
    return Refuse(503, "stuck", what);
  }
  if (path == "/health" && !connected) {
    return Refuse(503, "disconnected",
                  "The worker is not connected to a controller; it keeps its weights and joins "
                  "again.");
  }
  return Answer(200, {{"status", "ok"}, {"connected", connected}, {"busy_s", busy.seconds()}});
}

Result<std::unique_ptr<WorkerHealth>> WorkerHealth::Start(const HealthFlags& flags,
                                                          const cluster::WorkerHost& host,
                                                          const Clock& clock) {
  if (flags.listen.empty()) return std::unique_ptr<WorkerHealth>();
  MR_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(flags.listen));
  net::HttpServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.connections_max = kHealthConnectionsMax;
  auto health = std::make_unique<WorkerHealth>();
  const Duration stuck_after = Duration::Seconds(flags.stuck_after_s);
  auto server = net::HttpServer::Start(
      options, [&host, &clock, stuck_after](const net::HttpRequest& request,
                                            const std::shared_ptr<net::HttpReply>& reply) {
        if (request.method != "GET" && request.method != "HEAD") {
          return reply->Send(Refuse(405, "unknown", "Use GET."));
        }
        reply->Send(AnswerHealth(request.path, host.welcomed(), host.computing(), stuck_after,
                                 clock.Now()));
      });
  if (!server.ok()) return server.status().WithContext("--health-listen");
  health->server_ = std::move(*server);
  MR_LOG(info, "health on port {}", health->server_->port());
  return health;
}

}  // namespace millrace::apps
