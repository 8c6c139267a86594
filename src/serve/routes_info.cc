// The routes about the state of the server: health, load, metrics.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/certificate_dates.h"
#include "serve/answer/health.h"
#include "serve/answer/response.h"
#include "serve/observe/cluster_admin.h"
#include "serve/observe/request_spans.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

std::vector<prometheus::MetricFamily> CertificateMetrics() {
  prometheus::MetricFamily family{
      "millrace_certificate_not_after_seconds",
      "Unix time at which a TLS certificate that this process uses expires.",
      prometheus::MetricType::Gauge,
      {}};
  for (const net::UsedCertificate& used : net::NotedCertificates()) {
    prometheus::ClientMetric metric;
    metric.label = {{"use", used.use}};
    metric.gauge.value = static_cast<double>(used.dates.not_after_s);
    family.metric.push_back(std::move(metric));
  }
  if (family.metric.empty()) return {};
  return {std::move(family)};
}

}  // namespace

// Requests that have not been answered, for load balancers; vLLM's name.
void Service::Impl::Load(Call call) {
  call.reply->Send(JsonResponse({{"server_load", registry_.Live().size()}}));
}

void Service::Impl::Health(Call call) {
  const std::shared_ptr<ModelContext> loaded = model_context();
  const auto stats = loaded ? loaded->model.engine->Stats() : cluster::GeneratorStats{};
  const auto entry = stats.stalled ? registry_.Find(stats.stalled->id) : std::nullopt;
  call.reply->Send(HealthAnswer(stats, entry ? entry->external_id : ""));
}

void Service::Impl::ReadyRoute(Call call) {
  switch (state_.load()) {
    case ServiceState::kReady: {
      const std::optional<std::string> missing = model_context()->model.engine->NotReady();
      if (missing) return call.reply->Send(ErrorResponse(Unready(*missing)));
      if (!stored_.Writable()) {
        return call.reply->Send(
            ErrorResponse(Unready("Objects cannot be stored; the server's log has the cause.")));
      }
      return call.reply->Send(JsonResponse({{"status", "ready"}}));
    }
    case ServiceState::kLoading:
      return call.reply->Send(ErrorResponse(Unready("The model is still loading.")));
    case ServiceState::kLeaving:
    case ServiceState::kDraining: return call.reply->Send(ErrorResponse(Draining()));
  }
}

void Service::Impl::Metrics(Call call) {
  std::vector<prometheus::MetricFamily> families = http_metrics_->Collect();
  auto append = [&families](std::vector<prometheus::MetricFamily> more) {
    for (prometheus::MetricFamily& family : more) families.push_back(std::move(family));
  };
  append(ProcessMetrics());
  append(CertificateMetrics());
  if (options_.spans != nullptr) append(SpanMetrics(options_.spans->counters()));
  if (std::shared_ptr<ModelContext> loaded = model_context()) {
    append(loaded->metrics.Collect(loaded->model.engine->Stats()));
    if (ClusterAdmin* cluster = loaded->model.cluster) {
      append(loaded->metrics.Collect(cluster->Metrics()));
    }
  }
  call.reply->Send({.status = 200,
                    .headers = {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                    .body = RenderMetrics(families)});
}

}  // namespace millrace::serve
