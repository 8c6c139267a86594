#include "apps/commands/serve_reload.h"

#include <utility>
#include <vector>

#include "base/private_file.h"

namespace millrace::apps {

Result<serve::ApiKeys> ReadApiKeys(const ServeFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  if (flags.api_key_file.empty()) {
    auto made = serve::ApiKeys::Create(keys);
    return made.ok() ? made : made.status().WithContext("--api-key");
  }
  const auto more = serve::ReadApiKeyFile(flags.api_key_file);
  if (!more.ok()) return more.status().WithContext("--api-key-file");
  keys.insert(keys.end(), more->begin(), more->end());
  auto made = serve::ApiKeys::Create(keys);
  return made.ok() ? made : made.status().WithContext("--api-key and --api-key-file");
}

bool ReloadsFiles(const ServeFlags& flags) {
  return !flags.api_key_file.empty() || !flags.ssl_certfile.empty();
}

ServeReload::ServeReload(const ServeFlags& flags, serve::Service& service, net::HttpServer& server,
                         AdminEndpoints& admin, StopSignals& signals)
    : signals_(signals) {
  if (!ReloadsFiles(flags)) return;
  std::vector<ops::ReloadedFiles> files;
  if (!flags.api_key_file.empty()) {
    files.push_back({"API keys", {flags.api_key_file}, [&flags, &service]() -> Status {
                       MR_ASSIGN_OR_RETURN(serve::ApiKeys keys, ReadApiKeys(flags));
                       WarnIfOthersMayRead("--api-key-file", flags.api_key_file);
                       service.SetApiKeys(std::move(keys));
                       return OkStatus();
                     }});
  }
  if (!flags.ssl_certfile.empty()) {
    files.push_back(
        {"TLS certificate", {flags.ssl_certfile, flags.ssl_keyfile}, [&server, &admin]() -> Status {
           MR_RETURN_IF_ERROR(server.ReloadTls());
           return admin.ReloadTls();
         }});
  }
  reloader_ = std::make_unique<ops::Reloader>(std::move(files));
  signals_.OnHangup([reloader = reloader_.get()] { reloader->ReloadNow(); });
}

ServeReload::~ServeReload() { Stop(); }

void ServeReload::Stop() {
  signals_.OnHangup(nullptr);
  reloader_.reset();
}

}  // namespace millrace::apps
