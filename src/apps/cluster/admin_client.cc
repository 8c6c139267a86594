#include "apps/cluster/admin_client.h"

#include <fmt/format.h>

#include "apps/common/admin_socket.h"
#include "base/host_port.h"
#include "base/log.h"
#include "cluster/link/link_security.h"

namespace millrace::apps {
namespace {

constexpr size_t kAnswerBytesMax = 64 << 20;
constexpr int kStatusOk = 200;
constexpr size_t kMessageBytesMax = 1024;
constexpr char kDefaultBaseUrl[] = "http://127.0.0.1:8000";

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

// The server's own message, if there is one.
std::string Reason(const net::HttpResponse& response) {
  const auto body = ParseJson(response.body);
  if (body.ok() && body->is_object() && body->contains("error") && (*body)["error"].is_object()) {
    const Json message = (*body)["error"].value("message", Json());
    if (message.is_string()) return Printable(message.get<std::string>(), kMessageBytesMax);
  }
  return fmt::format("HTTP {}: {}", response.status, Printable(response.body));
}

// A key is for an address; without an address the controller is on this machine. The environment of
// a controller has the key too, so a key from there does not ask for an address.
bool UsesKey(const AdminFlags& flags) {
  return !flags.admin_key.empty() && !flags.base_url.empty();
}

Status CheckAdminFlags(const AdminFlags& flags, const net::Url& base) {
  if (UsesKey(flags)) return OkStatus();
  if (flags.given.contains("admin-key")) {
    return InvalidArgument(
        fmt::format("an admin key works only at the controller's --admin-listen: give that address "
                    "as {}; or leave out --admin-key to use the unix socket on this machine",
                    flags.url_option));
  }
  if (!cluster::IsLoopback(HostPort{base.host, base.port}.ToString())) {
    return InvalidArgument(
        fmt::format("{} {} is on another machine: give the address of the controller's "
                    "--admin-listen and its --admin-key (better in MILLRACE_ADMIN_KEY)",
                    flags.url_option, base.ToString()));
  }
  if (base.target != "/") {
    return InvalidArgument(fmt::format(
        "{} without a key names a port of this machine, so it ends after the port: {} does not",
        flags.url_option, base.ToString()));
  }
  if (flags.ca_file.empty()) return OkStatus();
  return InvalidArgument(
      fmt::format("--ca-file is for an https {} with --admin-key", flags.url_option));
}

}  // namespace

void AddAdminOptions(Command& command, AdminFlags* flags) {
  command.on_given = [flags](const std::set<std::string>& names) { flags->given = names; };
  constexpr char kGroup[] = "Controller";
  command.Add(kGroup, TextOption("base-url", "URL", &flags->base_url),
              "Without a key, a port of this machine: its unix socket is used, which only the user "
              "who started the controller can reach. With a key, the controller's --admin-listen, "
              "such as https://host:8100 [default: http://127.0.0.1:8000, without a key]");
  AddAdminKeyOptions(command, kGroup, flags);
}

void AddAdminKeyOptions(Command& command, const char* group, AdminFlags* flags) {
  command.Add(
      group, TextOption("admin-key", "KEY", &flags->admin_key),
      fmt::format(
          "The admin key of --admin-listen; better in MILLRACE_ADMIN_KEY, which counts only "
          "with {}",
          flags->url_option));
  Option ca_file = TextOption("ca-file", "FILE", &flags->ca_file);
  ca_file.kind = ValueKind::kFile;
  command.Add(group, std::move(ca_file),
              fmt::format("The certificate authority, in PEM, of an https {} [default: the "
                          "system's]",
                          flags->url_option));
}

Result<AdminClient> AdminClient::Create(const AdminFlags& flags) {
  AdminClient client;
  auto base = net::ParseUrl(flags.base_url.empty() ? kDefaultBaseUrl : flags.base_url);
  if (!base.ok()) return base.status().WithContext(flags.url_option);
  MR_RETURN_IF_ERROR(CheckAdminFlags(flags, *base));
  client.base_ = std::move(*base);
  if (UsesKey(flags)) client.admin_key_ = flags.admin_key;
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
  if (admin_key_.empty()) {
    // Found again for each call: a controller that was restarted may have another path.
    MR_ASSIGN_OR_RETURN(call.unix_path,
                        FindAdminSocket(RuntimePlaces::OfThisProcess(), base_.port));
  } else {
    call.headers.emplace_back("Authorization", "Bearer " + admin_key_);
  }
  if (!body.empty()) call.headers.emplace_back("Content-Type", "application/json");
  call.body = std::move(body);
  auto response = http_->Call(std::move(call));
  if (!response.ok()) return response.status().WithContext(base_.ToString());
  if (response->status != kStatusOk) return Status(CodeOf(response->status), Reason(*response));
  auto answer = ParseJson(response->body);
  if (!answer.ok() || !answer->is_object()) {
    return Internal(fmt::format("the answer of {} is not a JSON object: {}", base_.ToString(),
                                Printable(response->body)));
  }
  return answer;
}

}  // namespace millrace::apps
