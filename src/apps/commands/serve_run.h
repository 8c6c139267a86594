// What `serve` and `up` share: the HTTP server's options, and its run from the open port to the
// drained model. The model is loaded while the port is already open.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cluster/local_model.h"
#include "apps/commands/in_process.h"
#include "apps/commands/store_options.h"
#include "apps/common/engine_flags.h"
#include "base/clock.h"

namespace millrace::apps {

inline constexpr char kLoopbackHost[] = "127.0.0.1";

struct ServeFlags {
  EngineFlags engine;
  std::string host = kLoopbackHost;
  int port = 8000;
  std::string root_path;  // "/llm", or empty
  std::string uds;        // a unix socket instead of host and port; empty: none
  std::vector<std::string> served_names, api_keys, admin_keys;
  std::vector<std::string> allowed_origins = {"*"};
  std::string api_key_file;  // more keys; empty: none
  std::string admin_listen;  // HOST:PORT; empty: operators have the unix socket only
  std::string ssl_certfile, ssl_keyfile, chat_template;
  bool trust_request_chat_template = false;
  bool clamp_max_tokens = false;
  AnswerParsers parsers;
  StoreFlags store;
  std::string otlp_endpoint;  // empty: no spans
  std::string request_log;    // empty: requests are not logged
  double shutdown_timeout_s = 30;
  double drain_delay_s = 0;
  double keep_alive_s = 75;
  double resume_grace_s = 0;
  double ping_interval_s = 15;
  std::optional<double> refuse_beyond;  // times engine.slo.ttft_s
};

void AddServerOptions(Command& command, ServeFlags* flags);
Status ValidateServeFlags(const ServeFlags& flags);

// Makes the model: loaded here, or served by workers.
using ModelSource = std::function<Result<std::unique_ptr<LocalModel>>(const Clock& clock)>;

// Listens, gets the model, serves until SIGTERM or SIGINT, then lets running requests finish.
Status RunServer(const ServeFlags& flags, const ModelSource& source);

}  // namespace millrace::apps
