#include "apps/cluster/admin_client.h"

#include <fmt/format.h>

#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr size_t kAnswerBytesMax = 64 << 20;
constexpr int kStatusOk = 200;
constexpr size_t kMessageBytesMax = 1024;

StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 400: return StatusCode::kInvalidArgument;
    case 401:
    case 403: return StatusCode::kUnauthenticated;
    case 404: return StatusCode::kNotFound;
    case 409: return StatusCode::kFailedPrecondition;
    case 503: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

// The server's own sentence, where there is one.
std::string Reason(const net::HttpResponse& response) {
  const auto body = ParseJson(response.body);
  if (body.ok() && body->is_object() && body->contains("error") && (*body)["error"].is_object()) {
    const Json message = (*body)["error"].value("message", Json());
    if (message.is_string()) return Printable(message.get<std::string>(), kMessageBytesMax);
  }
  return fmt::format("HTTP {}: {}", response.status, Printable(response.body));
}

}  // namespace

void AddAdminOptions(Command& command, AdminFlags* flags) {
  constexpr char kGroup[] = "Controller";
  command.Add(kGroup, TextOption("base-url", "URL", &flags->base_url),
              "Where the controller answers, such as https://host:8000");
  command.Add(kGroup, TextOption("admin-key", "KEY", &flags->admin_key),
              "The controller's admin key; better in MILLRACE_ADMIN_KEY. On the controller's own "
              "machine none is needed unless it was started with one");
  Option ca_file = TextOption("ca-file", "FILE", &flags->ca_file);
  ca_file.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(ca_file),
              "The authority, in PEM, behind an https controller's certificate [default: the "
              "system's]");
}

Result<AdminClient> AdminClient::Create(const AdminFlags& flags) {
  AdminClient client;
  auto base = net::ParseUrl(flags.base_url);
  if (!base.ok()) return base.status().WithContext("--base-url");
  client.base_ = std::move(*base);
  client.admin_key_ = flags.admin_key;
  net::HttpClientOptions options;
  options.read_timeout = Duration::Seconds(60);
  options.body_bytes_max = kAnswerBytesMax;
  options.tls_authority_path = flags.ca_file;
  MR_ASSIGN_OR_RETURN(client.http_, net::HttpClient::Start(options));
  return client;
}

Result<Json> AdminClient::Post(const std::string& path, const Json& body) {
  return Call("POST", path, DumpJson(body));
}

Result<Json> AdminClient::Call(const std::string& method, const std::string& path,
                               std::string body) {
  net::HttpCall call;
  call.method = method;
  call.url = base_.Join(path);
  if (!admin_key_.empty()) call.headers.emplace_back("Authorization", "Bearer " + admin_key_);
  if (!body.empty()) call.headers.emplace_back("Content-Type", "application/json");
  call.body = std::move(body);
  auto response = http_->Call(std::move(call));
  if (!response.ok()) return response.status().WithContext(base_.ToString());
  if (response->status != kStatusOk) return Status(CodeOf(response->status), Reason(*response));
  auto answer = ParseJson(response->body);
  if (!answer.ok() || !answer->is_object()) {
    return Internal(fmt::format("{} answered with something else than a JSON object: {}",
                                base_.ToString(), Printable(response->body)));
  }
  return answer;
}

}  // namespace millrace::apps
