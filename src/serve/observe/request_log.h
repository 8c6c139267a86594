// RequestLog: what clients asked and which tokens they got, one JSON line per prompt, so that
// `millrace verify` can ask again and compare (docs/formats/request-log.md). A line holds the
// request as it came, with the seed that was drawn for it. It is as private as the prompts.
//
// Owned by the command that serves. Any thread. Its own thread writes the lines, so that a slow
// disk delays no answer. When too many bytes wait for it, requests are left out, and the log says
// how many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/mutex.h"
#include "base/status.h"
#include "core/ids.h"

namespace millrace::serve {

inline constexpr int kRequestLogVersion = 1;
inline constexpr size_t kRequestLogBytesMax = size_t{4} << 30;  // nothing is written beyond it
inline constexpr size_t kRequestLogWaitingBytesMax = size_t{64} << 20;  // of lines not yet written

// One prompt of a request that was answered whole.
struct LoggedRequest {
  int64_t unix_ms = 0;
  std::string id;           // of the answer
  bool chat = false;        // else a completion
  std::string fingerprint;  // of the workers that computed it
  std::string body;         // of the request, as it came
  std::vector<TokenId> prompt;
  uint64_t seed = 0;  // of this prompt
  struct Answer {
    std::vector<TokenId> tokens;
    std::string finish_reason;
  };
  std::vector<Answer> answers;
};

// The line, without a line break. `request` in it is a body that asks for the same again: whole
// instead of as a stream, for one prompt as token ids, with its seed.
std::string EncodeLoggedRequest(const LoggedRequest& request);

class RequestLog {
 public:
  // Appends to the file, which only its owner can read. A last line that was cut is removed.
  // `failed` is called once, with the reason, when writing ends early: the disk is full, or the
  // limit is reached.
  static Result<std::unique_ptr<RequestLog>> Open(const std::string& path,
                                                  std::function<void(const Status&)> failed);
  ~RequestLog();  // when all lines are written
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  void Write(const LoggedRequest& request);

 private:
  RequestLog(int fd, size_t bytes, std::function<void(const Status&)> failed);
  void Run();
  // On the log's own thread.
  Status WriteLine(const std::string& line);

  const int fd_;
  size_t bytes_;  // of the file; used by the log's own thread
  const std::function<void(const Status&)> failed_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> waiting_ MR_GUARDED_BY(mutex_);
  size_t waiting_bytes_ MR_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ MR_GUARDED_BY(mutex_) = 0;  // since the last warning
  bool ended_ MR_GUARDED_BY(mutex_) = false;     // nothing is written any more
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of these
};

}  // namespace millrace::serve
