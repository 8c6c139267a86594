// StreamClients: clients of a server that ask for one answer after another, as streams, and resume
// a stream that breaks off. Each client is a thread of this class.
//
// Owned by a drill. Any thread may call it; Start and the destructor are for the owner's. The HTTP
// client and the clock must outlive it.
#pragma once

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "apps/drill/drill_report.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "net/http/http_client.h"
#include "net/url.h"

namespace millrace::apps {

struct StreamClientOptions {
  net::Url server;
  std::optional<int> rounds;  // answers of each client; unset: until FinishAnswers
  // Without a byte of a stream or a successful connection; then the answer is lost.
  Duration patience = Duration::Seconds(60);
};

class StreamClients {
 public:
  // Client i asks requests[i] first, then the others in turn.
  StreamClients(net::HttpClient& http, StreamClientOptions options,
                std::vector<DrillRequest> requests, const Clock& clock, Time began);
  ~StreamClients();  // Abort()

  void Start();
  // Waits until each client has its last answer, and returns all of them.
  std::vector<DrillAnswer> Wait();
  // Each client ends with the answer that it is at.
  void FinishAnswers() { finishing_ = true; }
  // Each client ends at once; its last answer is lost.
  void Abort();

  // Streams that have a piece of text and are not whole.
  int running() const { return running_; }
  // Every client has its last answer.
  bool idle() const { return active_ == 0; }
  int64_t answers() const;

 private:
  class Reading;
  void Run(int client);
  DrillAnswer Ask(int client, size_t request, int round);
  // One connection. True when the answer is whole or cannot become so any more.
  bool ReadOn(const net::HttpCall& call, Reading& reading, DrillAnswer& answer);
  double Now() const { return (clock_.Now() - began_).seconds(); }

  net::HttpClient& http_;
  const StreamClientOptions options_;
  const std::vector<DrillRequest> requests_;
  const Clock& clock_;
  const Time began_;
  std::atomic<bool> finishing_ = false, aborting_ = false;
  std::atomic<int> running_ = 0, active_ = 0;

  mutable Mutex mutex_;
  std::vector<DrillAnswer> answers_ MR_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace millrace::apps
