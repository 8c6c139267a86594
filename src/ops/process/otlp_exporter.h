// OtlpExporter: takes spans to an OpenTelemetry collector (OTLP over HTTP, JSON encoding: POST
// /v1/traces), in batches, on its own thread. Spans wait in a bounded queue; beyond it, and when
// the collector does not take a batch, they are dropped and counted, with a warning now and then.
//
// Owned by the command that serves, and outlives the service.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/mutex.h"
#include "base/status.h"
#include "net/http/http_client.h"
#include "net/url.h"
#include "serve/observe/request_spans.h"

namespace millrace::ops {

inline constexpr size_t kSpansWaitingMax = 8192;
inline constexpr size_t kSpansPerBatchMax = 512;

// The address of /v1/traces at an endpoint such as http://host:4318. kInvalidArgument: it is none.
Result<net::Url> TracesUrl(const std::string& endpoint);
// The body of a request with these spans.
std::string TracesBody(const std::vector<Json>& spans, const std::string& version);

class OtlpExporter : public serve::SpanSink {
 public:
  static Result<std::unique_ptr<OtlpExporter>> Start(const std::string& endpoint,
                                                     std::string version, const Clock& clock);
  // Sends what waits, if the collector answers at once.
  ~OtlpExporter() override;

  void Send(std::vector<Json> spans) override;
  serve::SpanCounters counters() const override;

 private:
  OtlpExporter(net::Url url, std::string version, const Clock& clock)
      : url_(std::move(url)), version_(std::move(version)), clock_(clock) {}
  void Run();
  Status Post(const std::vector<Json>& batch);
  void Warn(const std::string& why);

  const net::Url url_;
  const std::string version_;
  const Clock& clock_;
  std::unique_ptr<net::HttpClient> http_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Json> waiting_ MR_GUARDED_BY(mutex_);
  serve::SpanCounters counters_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Time> warned_;  // the thread's
  std::thread thread_;
};

}  // namespace millrace::ops
