// millrace serve: the OpenAI-compatible server.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "apps/cli/parse.h"
#include "apps/commands.h"
#include "apps/in_process.h"
#include "apps/local_model.h"
#include "apps/signals.h"
#include "base/log.h"
#include "base/units.h"
#include "net/http_server.h"
#include "serve/service.h"

namespace millrace::apps {
namespace {

constexpr Duration kLastBytesLimit = Duration::Seconds(2);  // for replies to reach slow readers
constexpr int kPortMax = 65535;
constexpr double kShutdownTimeoutMax = 86400;

struct ServeFlags {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> served_names, api_keys;
  std::vector<std::string> allowed_origins = {"*"};
  std::string ssl_certfile, ssl_keyfile, chat_template;
  double shutdown_timeout_s = 30;
};

Status Validate(const ServeFlags& flags) {
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
  return serve::ApiKeys::Create(flags.api_keys).status().WithContext("--api-key");
}

Result<serve::ServiceOptions> ServiceOptionsFor(const ServeFlags& flags) {
  serve::ServiceOptions options;
  options.served_names =
      flags.served_names.empty() ? DefaultServedNames(flags.engine.model) : flags.served_names;
  options.version = Version();
  MR_ASSIGN_OR_RETURN(options.api_keys, serve::ApiKeys::Create(flags.api_keys));
  options.allowed_origins = flags.allowed_origins;
  return options;
}

net::HttpServerOptions ServerOptionsFor(const ServeFlags& flags) {
  net::HttpServerOptions options;
  options.host = flags.host;
  options.port = static_cast<uint16_t>(flags.port);
  options.tls_certificate_path = flags.ssl_certfile;
  options.tls_key_path = flags.ssl_keyfile;
  return options;
}

std::string Url(const ServeFlags& flags, uint16_t port) {
  const bool everywhere = flags.host.empty() || flags.host == "0.0.0.0" || flags.host == "::";
  std::string host = everywhere ? "127.0.0.1" : flags.host;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", flags.ssl_certfile.empty() ? "http" : "https", host, port);
}

// For a shell: inside double quotes of JSON inside single quotes.
std::string ShellJsonText(const std::string& text) {
  std::string out;
  for (char c : Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)) {
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out;
}

std::string TryLine(const ServeFlags& flags, const std::string& url, const std::string& name,
                    bool chat) {
  std::string line = "curl " + url + (chat ? "/v1/chat/completions" : "/v1/completions");
  line += " -H 'Content-Type: application/json'";
  if (!flags.api_keys.empty()) line += " -H \"Authorization: Bearer $API_KEY\"";
  const std::string question = chat ? R"("messages": [{"role": "user", "content": "Hello!"}])"
                                    : R"("prompt": "Once upon a time")";
  return line + fmt::format(" -d '{{\"model\": {}, {}, \"max_tokens\": 64}}'", ShellJsonText(name),
                            question);
}

void Announce(const ServeFlags& flags, const LocalModel& model, const std::string& url,
              const std::string& name) {
  fmt::print("{}", Summary(model));
  if (model.chat_template == nullptr) {
    fmt::print("No chat template: /v1/chat/completions is off; --chat-template FILE gives one\n");
  }
  fmt::print("\nServing {} on {}\n  {}\n", Printable(name), url,
             TryLine(flags, url, name, model.chat_template != nullptr));
  std::fflush(stdout);
}

// Leaves without a word to the threads that still run.
[[noreturn]] void LeaveNow(int code) {
  std::fflush(stdout);
  std::_Exit(code);
}

Status RunServe(const ServeFlags& flags) {
  StopSignals signals;  // before any other thread
  signals.OnSignal([](int) {
    MR_LOG(info, "stopped while loading");
    LeaveNow(0);
  });
  RaiseFileLimit();
  MR_RETURN_IF_ERROR(FindModel(flags.engine.model).status());
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(serve::ServiceOptions service_options, ServiceOptionsFor(flags));
  const std::string name = service_options.served_names.front();
  // Destroyed in reverse: the engine before the service, both after the server has stopped.
  serve::Service service(std::move(service_options), clock);
  MR_ASSIGN_OR_RETURN(const auto server,
                      net::HttpServer::Start(ServerOptionsFor(flags), service.Handler()));
  const std::string url = Url(flags, server->port());
  MR_LOG(info, "listening on {}, loading {}", url, Printable(flags.engine.model));
  auto model = LoadWithProgress(flags.engine, flags.chat_template, clock);
  if (!model.ok()) {
    server->Stop(Duration{});
    return model.status();
  }
  service.Ready(ToServed(**model));
  Announce(flags, **model, url, name);
  signals.OnSignal([](int count) {
    if (count > 1) LeaveNow(130);
  });
  signals.Wait();
  const Duration limit = Duration::Seconds(flags.shutdown_timeout_s);
  MR_LOG(info, "finishing what runs, for at most {}; a second signal stops at once",
         FormatDuration(limit.seconds()));
  if (!service.Drain(limit)) MR_LOG(warn, "requests were aborted after --shutdown-timeout");
  server->Stop(kLastBytesLimit);
  model->reset();
  return OkStatus();
}

void AddServerOptions(Command& command, ServeFlags* flags) {
  constexpr char kGroup[] = "Server";
  command.Add(kGroup, TextOption("host", "ADDRESS", &flags->host),
              "Address to listen on; 0.0.0.0 for every interface");
  command.Add(kGroup, IntOption("port", "PORT", &flags->port, 0, kPortMax),
              "TCP port; 0: any free one");
  command.Add(kGroup, TextListOption("served-model-name", "NAME", &flags->served_names),
              "Names that requests may use [default: the folder's name, and MODEL as given]");
  command.Add(kGroup, TextListOption("api-key", "KEY", &flags->api_keys),
              "Accept only requests with one of these keys; better in MILLRACE_API_KEY, where "
              "other users of the machine cannot see it");
  command.Add(kGroup, TextListOption("allowed-origins", "ORIGIN", &flags->allowed_origins),
              "Web pages that may call the server (CORS)");
  Option certfile = TextOption("ssl-certfile", "FILE", &flags->ssl_certfile);
  certfile.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(certfile), "TLS certificate chain in PEM");
  Option keyfile = TextOption("ssl-keyfile", "FILE", &flags->ssl_keyfile);
  keyfile.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(keyfile), "TLS private key in PEM");
  command.Add(
      kGroup,
      RealOption("shutdown-timeout", "SECONDS", &flags->shutdown_timeout_s, 0, kShutdownTimeoutMax),
      "How long SIGTERM or Ctrl-C waits for running requests");
  Option step_log = TextOption("step-log", "FILE", &flags->engine.step_log);
  step_log.kind = ValueKind::kFile;
  command.Add(kGroup, std::move(step_log),
              "Write every scheduling decision, with prompts and tokens, for `millrace simulate "
              "--replay FILE`");
  Option chat_template = TextOption("chat-template", "FILE", &flags->chat_template);
  chat_template.kind = ValueKind::kFile;
  command.Add("Model", std::move(chat_template),
              "A chat template (Jinja) instead of the model's own: a file, or the text itself");
}

}  // namespace

std::unique_ptr<Command> MakeServeCommand() {
  auto command = std::make_unique<Command>();
  command->name = "serve";
  command->summary = "Serve a model over an OpenAI-compatible HTTP API";
  command->description =
      "Loads a model and answers /v1/completions, /v1/chat/completions, /v1/models, /metrics and "
      "more. The port is open from the start: /health answers at once, /ready once the model is "
      "loaded. SIGTERM and Ctrl-C let running requests finish.";
  command->examples = {{"millrace serve models/demo", "the demo model on http://127.0.0.1:8000"},
                       {"millrace serve org/name --host 0.0.0.0 --api-key KEY --max-model-len 8192",
                        "a model of the Hugging Face cache, for the whole network, with a key"},
                       {"millrace serve models/demo --config server.yaml --port 9000",
                        "options from a file, one of them overridden"}};
  auto flags = std::make_shared<ServeFlags>();
  AddServerOptions(*command, flags.get());
  AddEngineOptions(*command, &flags->engine);
  AddEngineSeedOption(*command, &flags->engine);
  AddGeneralOptions(*command);
  command->validate = [flags] { return Validate(*flags); };
  command->run = [flags] { return RunServe(*flags); };
  return command;
}

}  // namespace millrace::apps
