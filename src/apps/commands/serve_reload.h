// ServeReload: a server's API keys and TLS certificate, read again when their files change and at
// SIGHUP. What cannot be read, or is wrong, changes nothing.
//
// Owned by the command, which creates it after the server and stops it before. One thread; the
// files are read on another.
#pragma once

#include <memory>

#include "apps/commands/admin_endpoints.h"
#include "apps/commands/serve_run.h"
#include "apps/common/signals.h"
#include "net/http/http_server.h"
#include "ops/process/reloader.h"
#include "serve/http/auth.h"
#include "serve/service.h"

namespace millrace::apps {

// Those of --api-key, and of --api-key-file as it is now.
Result<serve::ApiKeys> ReadApiKeys(const ServeFlags& flags);

// Whether the server has files that are read again.
bool ReloadsFiles(const ServeFlags& flags);

class ServeReload {
 public:
  // Everything must outlive it.
  ServeReload(const ServeFlags& flags, serve::Service& service, net::HttpServer& server,
              AdminEndpoints& admin, StopSignals& signals);
  ~ServeReload();
  void Stop();

 private:
  StopSignals& signals_;
  std::unique_ptr<ops::Reloader> reloader_;  // null: no such files
};

}  // namespace millrace::apps
