// StreamPings: lets silent event streams send a comment now and then, so that proxies and clients
// do not take them for dead while a request waits or a long prompt is computed. Owned by the
// service; any thread may add a stream. It has a thread of its own.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace::serve {

class Generation;

class StreamPings {
 public:
  StreamPings(Duration silence, const Clock& clock);
  ~StreamPings();

  // Until it ends.
  void Add(const std::shared_ptr<Generation>& stream);

 private:
  void Run();

  const Duration silence_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::weak_ptr<Generation>> streams_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::serve
