#include "ops/fleet/kubernetes_provider.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace millrace::ops {
namespace {

constexpr char kAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount/";
constexpr size_t kAccountFileBytesMax = 64 << 10;
constexpr int kConflictsMax = 3;
constexpr int kScaleDepthMax = 32;
constexpr int kHttpOk = 200, kHttpConflict = 409;
constexpr size_t kApiMessageBytes = 200, kApiConnections = 2;
constexpr auto kStopPoll = std::chrono::milliseconds(100);

Result<std::string> ReadAccount(const std::string& path) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kAccountFileBytesMax));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

Result<net::Url> ApiServer(const std::string& endpoint) {
  if (!endpoint.empty()) return net::ParseUrl(endpoint);
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr) {
    return InvalidArgument(
        "this process is not in a pod (KUBERNETES_SERVICE_HOST is not set), so the API server is "
        "not known: give kubernetes.endpoint in the fleet file");
  }
  const std::string address = host;
  const bool six = address.find(':') != std::string::npos;
  return net::ParseUrl(fmt::format("https://{}{}{}:{}", six ? "[" : "", address, six ? "]" : "",
                                   port == nullptr ? "443" : port));
}

}  // namespace

Result<std::unique_ptr<KubernetesProvider>> KubernetesProvider::Create(
    const std::string& set, cluster::KubernetesAccess access, Duration timeout,
    const std::atomic<bool>& stop) {
  MR_ASSIGN_OR_RETURN(const net::Url server, ApiServer(access.endpoint));
  const bool in_pod = access.endpoint.empty();
  if (in_pod && access.token_file.empty()) access.token_file = std::string(kAccount) + "token";
  if (in_pod && access.ca_file.empty()) access.ca_file = std::string(kAccount) + "ca.crt";
  const size_t slash = set.find('/');
  std::string name_space = slash == std::string::npos ? access.name_space : set.substr(0, slash);
  if (name_space.empty()) {
    const auto own = ReadAccount(std::string(kAccount) + "namespace");
    if (!own.ok()) {
      return InvalidArgument(
          "the namespace of the StatefulSet is not known: write kubernetes:NAMESPACE/STATEFULSET, "
          "or give kubernetes.namespace in the fleet file");
    }
    name_space = *own;
  }
  std::string name = slash == std::string::npos ? set : set.substr(slash + 1);
  net::Url scale = server.Join(
      fmt::format("apis/apps/v1/namespaces/{}/statefulsets/{}/scale", name_space, name));
  std::unique_ptr<KubernetesProvider> provider(
      new KubernetesProvider(std::move(name), std::move(scale), access.token_file, timeout, stop));
  net::HttpClientOptions options;
  options.connect_timeout = options.read_timeout = timeout;
  options.idle_connections_max = kApiConnections;
  options.body_bytes_max = kProviderAnswerBytesMax;
  options.tls_authority_path = access.ca_file;
  MR_ASSIGN_OR_RETURN(provider->http_, net::HttpClient::Start(options));
  return provider;
}

// Waits no longer than the timeout, and not beyond the end of the process.
Result<net::HttpResponse> KubernetesProvider::Fetch(net::HttpCall call) {
  struct Answer {
    net::HttpResponse response;
    std::promise<Status> done;
  };
  const auto answer = std::make_shared<Answer>();
  std::future<Status> done = answer->done.get_future();
  const net::FetchId fetch = http_->Fetch(
      std::move(call),
      {.on_head = [answer](int status,
                           const net::HttpHeaders&) { answer->response.status = status; },
       .on_data = [answer](std::string_view part) { answer->response.body += part; },
       .on_done = [answer](Status status) { answer->done.set_value(std::move(status)); }});
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_.ns);
  while (done.wait_for(kStopPoll) != std::future_status::ready) {
    const bool late = std::chrono::steady_clock::now() >= end;
    if (!late && !stop_) continue;
    http_->Cancel(fetch);
    done.wait();
    if (!late) return Cancelled("the controller ends");
    return Status(StatusCode::kDeadlineExceeded,
                  fmt::format("no answer within {:g} s", timeout_.seconds()));
  }
  MR_RETURN_IF_ERROR(done.get());
  return std::move(answer->response);
}

Result<Json> KubernetesProvider::Call(const char* method, const std::string& body) {
  net::HttpCall call{.method = method, .url = scale_, .body = body};
  call.headers = {{"Accept", "application/json"}};
  if (!body.empty()) call.headers.emplace_back("Content-Type", "application/merge-patch+json");
  if (!token_file_.empty()) {  // the kubelet renews it
    MR_ASSIGN_OR_RETURN(const std::string token, ReadAccount(token_file_));
    call.headers.emplace_back("Authorization", "Bearer " + token);
  }
  const auto response = Fetch(std::move(call));
  const std::string where = fmt::format("{} {}", method, scale_.ToString());
  if (!response.ok()) return response.status().WithContext(where);
  const auto answer = ParseJson(response->body, kScaleDepthMax);
  if (response->status == kHttpConflict) return FailedPrecondition(where + ": HTTP 409");
  if (response->status != kHttpOk) {
    const bool says = answer.ok() && answer->is_object() && answer->contains("message") &&
                      (*answer)["message"].is_string();
    return Unavailable(fmt::format(
        "{}: HTTP {}{}", where, response->status,
        says ? ": " + Printable((*answer)["message"].get<std::string>(), kApiMessageBytes) : ""));
  }
  if (!answer.ok()) return answer.status().WithContext(where);
  return *answer;
}

Result<KubernetesProvider::Scale> KubernetesProvider::Read() {
  MR_ASSIGN_OR_RETURN(const Json answer, Call("GET", ""));
  const Json spec = answer.is_object() ? answer.value("spec", Json()) : Json();
  const Json metadata = answer.is_object() ? answer.value("metadata", Json()) : Json();
  Scale scale;
  // The API server leaves a field out that is zero.
  const Json replicas = spec.is_object() ? spec.value("replicas", Json(0)) : Json();
  const bool counts =
      replicas.is_number_integer() && replicas >= 0 && replicas <= cluster::FleetSpec::kMachinesMax;
  if (!counts || !metadata.is_object() || !metadata.contains("resourceVersion") ||
      !metadata["resourceVersion"].is_string()) {
    return InvalidArgument(
        fmt::format("{} answers no Scale with spec.replicas in [0, {}] and "
                    "metadata.resourceVersion",
                    scale_.ToString(), cluster::FleetSpec::kMachinesMax));
  }
  scale.replicas = replicas.get<int64_t>();
  scale.version = metadata["resourceVersion"].get<std::string>();
  return scale;
}

Status KubernetesProvider::Write(const Scale& before, int64_t replicas) {
  const Json patch = {{"metadata", {{"resourceVersion", before.version}}},
                      {"spec", {{"replicas", replicas}}}};
  return Call("PATCH", DumpJson(patch)).status();
}

Status KubernetesProvider::Change(const std::function<Result<int64_t>(int64_t)>& wanted) {
  Status status;
  for (int i = 0; i < kConflictsMax; ++i) {
    MR_ASSIGN_OR_RETURN(const Scale scale, Read());
    MR_ASSIGN_OR_RETURN(const int64_t replicas, wanted(scale.replicas));
    if (replicas == scale.replicas) return OkStatus();
    status = Write(scale, replicas);
    if (status.code() != StatusCode::kFailedPrecondition) return status;
  }
  return status.WithContext("somebody else scales this StatefulSet as well; let one do it");
}

std::string KubernetesProvider::PodName(int64_t ordinal) const {
  return fmt::format("{}-{}", name_, ordinal);
}

Result<std::vector<cluster::ListedMachine>> KubernetesProvider::List() {
  MR_ASSIGN_OR_RETURN(const Scale scale, Read());
  std::vector<cluster::ListedMachine> machines;
  for (int64_t i = 0; i < scale.replicas; ++i) machines.push_back({PodName(i), PodName(i)});
  return machines;
}

Status KubernetesProvider::Acquire(int count) {
  return Change([count](int64_t replicas) -> Result<int64_t> { return replicas + count; });
}

Status KubernetesProvider::Release(const std::string& id) {
  return Change([&](int64_t replicas) -> Result<int64_t> {
    if (replicas > 0 && PodName(replicas - 1) == id) return replicas - 1;
    for (int64_t i = 0; i < replicas; ++i) {
      if (PodName(i) == id) {
        return Unavailable(
            fmt::format("{} is not the highest of {} pods, which alone can be "
                        "released",
                        id, replicas));
      }
    }
    return replicas;  // it is gone
  });
}

}  // namespace millrace::ops
