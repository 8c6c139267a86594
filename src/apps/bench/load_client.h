// LoadClient: sends a workload to an OpenAI-compatible server and times every piece of every
// stream.
//
// It is used on one thread. The HTTP client's thread fills in the outcomes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/metrics.h"
#include "apps/bench/workload.h"
#include "base/clock.h"
#include "net/http/http_client.h"

namespace millrace::apps {

struct LoadTarget {
  net::Url url;  // of the endpoint
  std::string model;
  net::HttpHeaders headers;  // of every request, beside Content-Type
  bool chat = false;         // the endpoint is /v1/chat/completions
  bool ignore_eos = false;
};

// The JSON of one request. It asks for the likeliest tokens, in a stream that ends with its token
// counts.
std::string RequestBody(const LoadTarget& target, const BenchRequest& request);

class LoadClient {
 public:
  LoadClient(net::HttpClient& http, LoadTarget target, const Clock& clock)
      : http_(http), target_(std::move(target)), clock_(clock) {}

  struct Result {
    std::vector<Outcome> outcomes;  // one per request, in order
    double duration_s = 0;          // until the last one ended
  };
  // Open loop: sends each request at its arrival time, or later, when fewer than `max_concurrency`
  // are in flight. Calls `progress` after the end of each request.
  Result Run(const std::vector<BenchRequest>& requests, std::optional<int> max_concurrency,
             const std::function<void(int done, int failed)>& progress);

 private:
  net::HttpClient& http_;
  const LoadTarget target_;
  const Clock& clock_;
};

// StreamTimer: times the stream of one request as it arrives. Reads no clock; one thread. Separate
// from LoadClient so that tests need no server.
class StreamTimer {
 public:
  StreamTimer(Time sent, bool chat);
  ~StreamTimer();

  void Head(int status);
  void Data(std::string_view part, Time now);
  // The response has ended or failed.
  Outcome Finish(const Status& status, Time now);

 private:
  void Event(std::string_view data);
  void Token(const std::string& text);

  struct Parser;
  std::unique_ptr<Parser> parser_;
  const Time sent_;
  const bool chat_;
  int status_ = 0;
  std::string body_;  // of an error response
  Time now_, last_;   // of the current part; of the last piece of text
  int pieces_ = 0;
  bool done_ = false;  // [DONE] arrived
  Outcome outcome_;
};

}  // namespace millrace::apps
