#include "apps/commands/serve_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "apps/cli/parse.h"
#include "apps/cluster/local_model.h"
#include "apps/commands/admin_endpoints.h"
#include "apps/commands/in_process.h"
#include "apps/commands/serve_reload.h"
#include "apps/common/grammar_trial.h"
#include "apps/common/signals.h"
#include "apps/common/slo_option.h"
#include "base/json.h"
#include "base/log.h"
#include "base/private_file.h"
#include "base/units.h"
#include "base/version.h"
#include "net/http/http_server.h"
#include "net/url.h"
#include "ops/hub/fetch_model.h"
#include "ops/process/otlp_exporter.h"
#include "ops/process/process_deadline.h"
#include "serve/http/admin_access.h"
#include "serve/http/router.h"
#include "serve/observe/request_log.h"
#include "serve/service.h"

namespace millrace::apps {
namespace {

constexpr Duration kEndLimit = Duration::Seconds(10);       // for the threads to end after that
constexpr Duration kLastBytesLimit = Duration::Seconds(2);  // for replies to reach slow readers
constexpr int kPortMax = 65535;
constexpr size_t kRootPathBytesMax = 256;
constexpr double kShutdownTimeoutMax = 86400;
constexpr double kKeepAliveMin = 1;
constexpr double kResumeGraceMax = 3600;
constexpr double kRefuseBeyondMin = 0.01, kRefuseBeyondMax = 1000;

Result<serve::ServiceOptions> ServiceOptionsFor(const ServeFlags& flags) {
  serve::ServiceOptions options;
  options.served_names = flags.served_names;
  options.loaded_from = flags.engine.model;
  options.takes_templates = flags.trust_request_chat_template;
  options.clamps_max_tokens = flags.clamp_max_tokens;
  if (options.served_names.empty()) {
    options.served_names = {DefaultServedName(flags.engine.model)};
    options.unlisted_names = {flags.engine.model};
  }
  options.version = Version();
  options.root_path = flags.root_path;
  MR_ASSIGN_OR_RETURN(options.api_keys, ReadApiKeys(flags));
  MR_ASSIGN_OR_RETURN(options.admin_keys, serve::ApiKeys::Create(flags.admin_keys));
  options.allowed_origins = flags.allowed_origins;
  options.resumable.enabled = flags.resume_grace_s > 0;
  options.resumable.grace = Duration::Seconds(flags.resume_grace_s);
  options.ping_after = Duration::Seconds(flags.ping_interval_s);
  options.limits = flags.engine.slo;
  options.refuse_beyond = flags.refuse_beyond;
  options.try_grammar = TryGrammar;
  MR_ASSIGN_OR_RETURN(options.store, OpenStore(flags.store));
  return options;
}

net::HttpServerOptions ServerOptionsFor(const ServeFlags& flags) {
  net::HttpServerOptions options;
  options.idle_timeout = Duration::Seconds(flags.keep_alive_s);
  if (!flags.uds.empty()) {
    options.unix_path = std::filesystem::absolute(flags.uds);
    return options;
  }
  options.host = flags.host;
  options.port = static_cast<uint16_t>(flags.port);
  options.tls_certificate_path = flags.ssl_certfile;
  options.tls_key_path = flags.ssl_keyfile;
  return options;
}

AdminEndpointOptions AdminOptionsFor(const ServeFlags& flags, uint16_t main_port) {
  return {.main_port = flags.uds.empty() ? main_port : static_cast<uint16_t>(flags.port),
          .listen = flags.admin_listen,
          .ssl_certfile = flags.ssl_certfile,
          .ssl_keyfile = flags.ssl_keyfile};
}

// --admin-listen and --admin-key need each other.
Status ValidateAdminFlags(const ServeFlags& flags) {
  MR_RETURN_IF_ERROR(serve::ApiKeys::Create(flags.admin_keys).status().WithContext("--admin-key"));
  if (flags.admin_listen.empty() && flags.admin_keys.empty()) return OkStatus();
  if (flags.admin_listen.empty()) {
    return InvalidArgument(
        "--admin-key needs --admin-listen: give the address that holders of the key will call; on "
        "this machine the unix socket of the server's user needs no key");
  }
  if (flags.admin_keys.empty()) {
    return InvalidArgument(
        "--admin-listen needs a key: give --admin-key, or better MILLRACE_ADMIN_KEY");
  }
  return OkStatus();
}

// `text`, to be pasted inside single quotes of a shell.
std::string ShellText(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out;
}

// --uds replaces the address, and only this user's processes reach it.
Status ValidateUnixSocket(const ServeFlags& flags) {
  if (flags.uds.empty()) return OkStatus();
  if (flags.host != kLoopbackHost) {
    return InvalidArgument("--uds takes the place of --host: leave one of them out");
  }
  if (!flags.ssl_certfile.empty()) {
    return InvalidArgument(
        "TLS is not supported on a unix socket: leave out --ssl-certfile or --uds");
  }
  if (flags.port == 0) {
    return InvalidArgument(
        "with --uds, --port is the number in the name of the admin socket: give one that is not 0");
  }
  return OkStatus();
}

// What a client calls, as arguments of curl.
std::string CurlTarget(const ServeFlags& flags, const std::string& url) {
  if (flags.uds.empty()) return url;
  return fmt::format("--unix-socket '{}' http://localhost{}", ShellText(flags.uds),
                     flags.root_path);
}

std::string Url(const ServeFlags& flags, uint16_t port) {
  if (!flags.uds.empty()) return "unix socket " + Printable(flags.uds, 1024);
  net::Url url;
  url.https = !flags.ssl_certfile.empty();
  const bool everywhere = flags.host == "0.0.0.0" || flags.host == "::";
  url.host = everywhere ? "127.0.0.1" : flags.host;
  url.port = port;
  url.target = flags.root_path;
  return url.ToString();
}

// The same for `text` as a JSON string.
std::string ShellJsonText(const std::string& text) { return ShellText(DumpJson(Json(text))); }

struct Trial {
  const char* path;
  const char* fields;
};

// A request that shows what the model can do.
Trial TrialOf(const LocalModel& model) {
  if (!model.spec.generates) return {"/v1/embeddings", R"("input": "Once upon a time")"};
  if (model.chat_template == nullptr) {
    return {"/v1/completions", R"("prompt": "Once upon a time", "max_tokens": 64)"};
  }
  return {"/v1/chat/completions",
          R"("messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64)"};
}

std::string TryLine(const ServeFlags& flags, const std::string& url, const std::string& name,
                    const Trial& trial) {
  std::string line = "curl " + CurlTarget(flags, url) + trial.path;
  line += " -H 'Content-Type: application/json'";
  const bool needs_key = !flags.api_keys.empty() || !flags.api_key_file.empty();
  if (needs_key) line += " -H \"Authorization: Bearer $API_KEY\"";
  return line + fmt::format(" -d '{{\"model\": {}, {}}}'", ShellJsonText(name), trial.fields);
}

void Announce(const ServeFlags& flags, const LocalModel& model, const std::string& url,
              const std::string& name) {
  fmt::print("{}", Summary(model));
  if (model.chat_template == nullptr && model.spec.generates) {
    fmt::print(
        "No chat template: /v1/chat/completions is disabled; give one with --chat-template FILE\n");
  }
  fmt::print("\nServing {} on {}\n  {}\n", Printable(name), url,
             TryLine(flags, url, name, TrialOf(model)));
  std::fflush(stdout);
}

Status SetRootPath(std::string_view text, std::string* root_path) {
  std::string path = serve::WithoutStraySlashes(text);
  if (path == "/") path.clear();
  const auto usual = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-._~/").find(c) != std::string_view::npos;
  };
  const bool dots = (path + "/").find("/./") != std::string::npos ||
                    (path + "/").find("/../") != std::string::npos;
  if (text.empty() || path.size() > kRootPathBytesMax || !(path.empty() || path.front() == '/') ||
      !std::ranges::all_of(path, usual) || dots) {
    return InvalidArgument(
        fmt::format("must be a path such as /llm, of letters, digits, '-', '.', '_', '~' and '/', "
                    "with at most {} bytes, got '{}'",
                    kRootPathBytesMax, Printable(text, 80)));
  }
  if (serve::IsAdminPath(path)) {
    return InvalidArgument(
        fmt::format("must not begin as the admin routes do, got '{}'", Printable(text, 80)));
  }
  *root_path = std::move(path);
  return OkStatus();
}

Option RootPathOption(std::string* target) {
  Option option = CustomOption("root-path", "PATH", "", [target](const std::string& text) {
    return SetRootPath(text, target);
  });
  option.aliases = {"--api-prefix"};
  return option;
}

void AddAdminEndpointOptions(Command& command, ServeFlags* flags) {
  constexpr char kGroup[] = "Administration";
  command.Add(
      kGroup, AddressOption("admin-listen", "HOST:PORT", &flags->admin_listen),
      "Serve the admin routes (/cluster, /debug, /metrics) on this address too, with TLS if "
      "the main port has it; needs --admin-key. They are always served on a unix socket of the "
      "server's user, where `millrace status` finds them. Of these, the main port serves only "
      "/metrics, which needs an API key there if one is set");
  command.Add(kGroup, TextListOption("admin-key", "KEY", &flags->admin_keys),
              "Keys that callers of --admin-listen need; better in MILLRACE_ADMIN_KEY");
}

void AddLatencyOptions(Command& command, ServeFlags* flags) {
  constexpr char kGroup[] = "Latency";
  command.Add(
      kGroup, SloOption(&flags->engine.slo),
      std::string(kSloHelp) +
          ". /metrics counts the requests that kept and missed them. With tpot, steps that "
          "generate tokens have only as many prompt tokens beside them as the limit allows");
  command.Add(kGroup,
              RealOption("refuse-beyond", "FACTOR", &flags->refuse_beyond, kRefuseBeyondMin,
                         kRefuseBeyondMax),
              "Answer 429 with Retry-After when a request's TTFT is predicted to exceed the limit "
              "of --slo by this factor: the prompt tokens ahead of it and its own, by the rate "
              "measured so far");
}

Result<std::unique_ptr<serve::RequestLog>> OpenRequestLog(const std::string& path) {
  auto log = serve::RequestLog::Open(path, [path](const Status& why) {
    MR_LOG(error, "{}: no more requests are logged: {}", path, why.message());
  });
  if (!log.ok()) return log.status().WithContext("--request-log");
  return log;
}

// Exits without stopping the threads that still run.
[[noreturn]] void LeaveNow(int code) {
  std::fflush(stdout);
  std::_Exit(code);
}

// Load balancers see that the server ends before it refuses anything.
void LeaveReady(serve::Service& service, Duration delay) {
  MR_LOG(info, "not ready any more; requests are still taken for {}; a second signal stops at once",
         FormatDuration(delay.seconds()));
  service.BeginLeaving();
  std::this_thread::sleep_for(std::chrono::nanoseconds(delay.ns));
}

}  // namespace

Status ValidateServeFlags(const ServeFlags& flags) {
  if (!flags.otlp_endpoint.empty()) {
    MR_RETURN_IF_ERROR(ops::TracesUrl(flags.otlp_endpoint).status().WithContext("--otlp-endpoint"));
  }
  MR_RETURN_IF_ERROR(ValidateEngineFlags(flags.engine));
  if (flags.ssl_certfile.empty() != flags.ssl_keyfile.empty()) {
    return InvalidArgument("TLS needs both: give --ssl-certfile and --ssl-keyfile");
  }
  for (const std::string* path : {&flags.ssl_certfile, &flags.ssl_keyfile}) {
    if (!path->empty() && access(path->c_str(), R_OK) != 0) {
      return InvalidArgument(
          fmt::format("cannot read {}; check --ssl-certfile and --ssl-keyfile", Printable(*path)));
    }
  }
  MR_RETURN_IF_ERROR(ValidateUnixSocket(flags));
  MR_RETURN_IF_ERROR(ValidateAdminFlags(flags));
  MR_RETURN_IF_ERROR(CheckAnswerParsers(flags.parsers));
  MR_RETURN_IF_ERROR(CompleteSlo(flags.engine.slo, {}).status());
  if (flags.refuse_beyond && !flags.engine.slo.ttft_s) {
    return InvalidArgument("--refuse-beyond needs a limit on TTFT: give --slo ttft=TIME as well");
  }
  return ReadApiKeys(flags).status();
}

Status RunServer(const ServeFlags& flags, const ModelSource& source) {
  // Before any other thread.
  StopSignals signals(ReloadsFiles(flags) ? Hangup::kReloads : Hangup::kEnds);
  signals.OnSignal([](int) {
    MR_LOG(info, "stopped while loading");
    LeaveNow(0);
  });
  RaiseFileLimit();
  MR_RETURN_IF_ERROR(ops::CheckModel(flags.engine.model, flags.engine.hub));
  for (const auto& [option, path] : {std::pair("--api-key-file", &flags.api_key_file),
                                     std::pair("--ssl-keyfile", &flags.ssl_keyfile)}) {
    if (!path->empty()) WarnIfOthersMayRead(option, *path);
  }
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(serve::ServiceOptions service_options, ServiceOptionsFor(flags));
  const std::string name = service_options.served_names.front();
  std::unique_ptr<ops::OtlpExporter> exporter;  // outlives the service
  if (!flags.otlp_endpoint.empty()) {
    MR_ASSIGN_OR_RETURN(exporter, ops::OtlpExporter::Start(flags.otlp_endpoint, Version(), clock));
    service_options.spans = exporter.get();
  }
  std::unique_ptr<serve::RequestLog> request_log;  // as well
  if (!flags.request_log.empty()) {
    MR_ASSIGN_OR_RETURN(request_log, OpenRequestLog(flags.request_log));
    service_options.request_log = request_log.get();
  }
  // Destroyed in reverse: the controller before the service, both after the server has stopped.
  serve::Service service(std::move(service_options), clock);
  MR_ASSIGN_OR_RETURN(const auto server,
                      net::HttpServer::Start(ServerOptionsFor(flags), service.Handler()));
  MR_ASSIGN_OR_RETURN(const auto admin,
                      AdminEndpoints::Start(AdminOptionsFor(flags, server->port()), service));
  const auto remove_sockets = [main = server->socket_file(), others = admin->FileRemover()] {
    main.Remove();
    others();
  };
  signals.OnSignal([remove_sockets](int) {
    MR_LOG(info, "stopped while loading");
    remove_sockets();
    LeaveNow(0);
  });
  ServeReload reload(flags, service, *server, *admin, signals);
  const std::string url = Url(flags, server->port());
  MR_LOG(info, "listening on {}, loading {}", url, Printable(flags.engine.model));
  auto model = source(clock);
  if (!model.ok()) {
    reload.Stop();
    admin->Stop();
    server->Stop(Duration{});
    return model.status();
  }
  service.Ready(ToServed(**model, flags.parsers));
  Announce(flags, **model, url, name);
  signals.OnSignal([remove_sockets](int count) {
    if (count <= 1) return;
    remove_sockets();
    LeaveNow(130);
  });
  signals.Wait();
  const Duration delay = Duration::Seconds(flags.drain_delay_s);
  const Duration limit = Duration::Seconds(flags.shutdown_timeout_s);
  ops::ProcessDeadline deadline(clock, remove_sockets);
  deadline.EndBy(clock.Now() + delay + limit + kLastBytesLimit + kEndLimit, 1,
                 "threads that stand still");
  if (delay > Duration()) LeaveReady(service, delay);
  MR_LOG(info, "finishing running requests, for at most {}; a second signal stops at once",
         FormatDuration(limit.seconds()));
  reload.Stop();
  if (!service.Drain(limit)) MR_LOG(warn, "requests were aborted after --shutdown-timeout");
  admin->Stop();  // first: the next server may begin as soon as the port is free
  server->Stop(kLastBytesLimit);
  service.Drain(Duration{});  // what came in meanwhile
  model->reset();
  return OkStatus();
}

void AddServerOptions(Command& command, ServeFlags* flags) {
  AddLatencyOptions(command, flags);
  constexpr char kGroup[] = "Server";
  command.Add(kGroup, HostOption("host", "ADDRESS", &flags->host),
              "Address to listen on; 0.0.0.0 for every interface, :: for IPv6 as well");
  command.Add(kGroup, IntOption("port", "PORT", &flags->port, 0, kPortMax),
              "TCP port; 0: any free one");
  command.Add(kGroup, RootPathOption(&flags->root_path),
              "Path below which a reverse proxy offers the server, such as /llm: every route is "
              "found below it too, whether the proxy removes it or not");
  Option uds = TextOption("uds", "PATH", &flags->uds);
  uds.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(uds),
              "Listen on this unix socket, for processes of this user, instead of on --host and "
              "--port; the port then only names the admin socket");
  command.Add(kGroup, TextListOption("served-model-name", "NAME", &flags->served_names),
              "Names that requests may use [default: the folder's name; MODEL as given is accepted "
              "too, but not listed]");
  AddAdminEndpointOptions(command, flags);
  command.Add(kGroup, TextListOption("api-key", "KEY", &flags->api_keys),
              "Accept only requests with one of these keys; better in MILLRACE_API_KEY, where "
              "other users of the machine cannot see it");
  Option key_file = TextOption("api-key-file", "FILE", &flags->api_key_file);
  key_file.kind = ValueKind::kFile;
  command.Add(
      kGroup, std::move(key_file),
      "More keys, one a line, beside lines that begin with '#'. It is read again when it changes, "
      "and at SIGHUP");
  command.Add(kGroup, TextListOption("allowed-origins", "ORIGIN", &flags->allowed_origins),
              "Web pages that may call the server (CORS)");
  Option certfile = TextOption("ssl-certfile", "FILE", &flags->ssl_certfile);
  certfile.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(certfile),
              "TLS certificate chain in PEM; it and its key are read again when they change, and "
              "at SIGHUP");
  Option keyfile = TextOption("ssl-keyfile", "FILE", &flags->ssl_keyfile);
  keyfile.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(keyfile), "TLS private key in PEM");
  command.Add(kGroup, TextOption("otlp-endpoint", "URL", &flags->otlp_endpoint),
              "OpenTelemetry collector that gets a span of each request and of what its time went "
              "into, over HTTP, such as http://127.0.0.1:4318 [default: none]");
  command.Add(
      kGroup,
      RealOption("shutdown-timeout", "SECONDS", &flags->shutdown_timeout_s, 0, kShutdownTimeoutMax),
      "How long SIGTERM or Ctrl-C waits for running requests");
  command.Add(kGroup,
              RealOption("keep-alive-timeout", "SECONDS", &flags->keep_alive_s, kKeepAliveMin,
                         kShutdownTimeoutMax),
              "How long a connection without a request stays open. Longer than that of a proxy in "
              "front, or the proxy sends requests on connections that are just closed");
  command.Add(
      kGroup, RealOption("drain-delay", "SECONDS", &flags->drain_delay_s, 0, kShutdownTimeoutMax),
      "How long after SIGTERM or Ctrl-C requests are still taken while /ready answers 503, so that "
      "load balancers stop sending them before they are refused; precedes --shutdown-timeout");
  command.Add(kGroup,
              RealOption("resume-grace", "SECONDS", &flags->resume_grace_s, 0, kResumeGraceMax),
              "How long a stream continues without its client, which can resume it with "
              "Last-Event-ID; 0: not at all");
  command.Add(kGroup,
              RealOption("ping-interval", "SECONDS", &flags->ping_interval_s, 0, kResumeGraceMax),
              "After how long without an event a stream sends a comment, so that proxies keep its "
              "connection; 0: never");
  Option clamp = FlagOption("clamp-max-tokens", &flags->clamp_max_tokens);
  clamp.aliases = {"--max-tokens-clamp"};
  command.Add(
      kGroup, std::move(clamp),
      "Lower a max_tokens that is more than the context leaves to what it leaves, instead of "
      "refusing the request, for agents that always send the same number");
  AddStoreOptions(command, &flags->store);
  Option request_log = TextOption("request-log", "FILE", &flags->request_log);
  request_log.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(request_log),
              "Append every request that was answered, with its prompt, seed and tokens, for "
              "`millrace verify FILE`");
  Option step_log = TextOption("step-log", "FILE", &flags->engine.step_log);
  step_log.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(step_log),
              "Write every scheduling decision, with prompts and tokens, for `millrace simulate "
              "--replay FILE`");
  Option chat_template = TextOption("chat-template", "FILE", &flags->chat_template);
  chat_template.kind = ValueKind::kFile;
  command.Add("Model", std::move(chat_template),
              "A chat template (Jinja) instead of the model's own: a file, or the text itself");
  AddContentFormatOption(command, "Model", &flags->engine);
  command.Add(
      "Model", FlagOption("trust-request-chat-template", &flags->trust_request_chat_template),
      "A chat request may have a chat_template of its own. It can only make its own prompt, "
      "with bounded work");
  command.Add("Model", TextOption("tool-call-parser", "NAME", &flags->parsers.tool_calls),
              "How the model writes tool calls; auto: as its chat template shows. Others: none, "
              "hermes, llama3_json, mistral, deepseek_v3, kimi_k2, glm45, qwen3_coder, granite, "
              "lfm2, pythonic, json");
  command.Add(
      "Model", TextOption("reasoning-parser", "NAME", &flags->parsers.reasoning),
      "How the model marks its reasoning, which answers have in reasoning_content; auto: as "
      "its chat template shows. Others: none, think, mistral, kimi, seed");
}

}  // namespace millrace::apps
