// Service: the OpenAI-compatible front end of one controller. It owns its worker threads, routes
// and metrics. The app owns it and passes its Handler() to net::HttpServer. It can serve before the
// model is loaded: until Ready(), requests that need the model get 503 with Retry-After.
//
// Shutdown order, which the app must follow:
//   service.Drain(limit); server.Stop(); then the controller and the service may be destroyed.
// All methods: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/latency_limits.h"
#include "net/http/http.h"
#include "net/http/http1.h"
#include "serve/answer/retained_stream.h"
#include "serve/generation/served_model.h"
#include "serve/http/admin_access.h"
#include "serve/http/auth.h"

namespace millrace::serve {

class ObjectStore;
class RequestLog;
class SpanSink;

struct ServiceOptions {
  std::vector<std::string> served_names;  // at least one; the first is shown in answers and metrics
  // Also accepted as "model" in requests but never shown: the path that the model was loaded from.
  std::vector<std::string> unlisted_names;
  std::string loaded_from;  // folder or name of the model: plans may name it
  std::string version;      // of the program
  std::string root_path;    // "/llm": routes of Endpoint::kMain are found below it too; empty: none
  ApiKeys api_keys;
  ApiKeys admin_keys;  // of Endpoint::kAdminListen
  std::vector<std::string> allowed_origins = {"*"};
  bool parse_special_in_prompts = false;  // default of the field parse_special
  bool takes_templates = false;           // a chat request may have its own chat template
  bool clamps_max_tokens = false;         // max_tokens beyond the context is lowered on every route
  // Limit of a body that arrives as gzip, once it is inflated; HttpServer has it for all others.
  size_t inflated_bytes_max = net::HttpLimits().body_bytes_max;
  int worker_threads = 1;      // detokenizing and JSON of all streams
  ResumableStreams resumable;  // clients may reconnect for the rest of a stream
  Duration ping_after;         // silent streams send a ping; 0: none does
  LatencyLimits limits;        // requests are judged by them
  // Of responses, files and batches; null: one in memory.
  std::shared_ptr<ObjectStore> store;
  // Compiles a grammar where it can do no harm, before it is compiled here; on a thread of its own.
  // Empty: it is not tried.
  std::function<Status(const std::string& grammar)> try_grammar;
  // Requests are refused if their TTFT is predicted to exceed limits.ttft_s by this factor. Unset:
  // none is.
  std::optional<double> refuse_beyond;
  RequestLog* request_log = nullptr;  // outlives the service; null: requests are not logged
  SpanSink* spans = nullptr;  // outlives the service; null: no spans, and no traceparent in answers
};

enum class ServiceState { kLoading, kReady, kLeaving, kDraining };

class Service {
 public:
  // `clock` is the controller's and outlives the service.
  Service(ServiceOptions options, const Clock& clock);
  ~Service();

  // The handler of that endpoint.
  net::HttpHandler Handler(Endpoint endpoint = Endpoint::kMain);

  // Called once, when the model is loaded: kLoading -> kReady. When it returns, clients can resume
  // the streams of the previous run.
  void Ready(ServedModel model);
  ServiceState state() const;

  // The keys of requests from now on, in place of those of the options. Any thread.
  void SetApiKeys(ApiKeys keys);

  // From now on /ready gets 503, and everything else is served as before: load balancers see that
  // the server ends before it refuses requests. kReady -> kLeaving.
  void BeginLeaving();
  // From now on, new generation requests and /ready get 503.
  void BeginDrain();
  // BeginDrain, then Generator::Drain(limit), then waits until the last answers are written.
  // Returns false if requests had to be aborted.
  bool Drain(Duration limit);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace millrace::serve
