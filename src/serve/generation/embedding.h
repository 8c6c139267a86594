// Embedding: one HTTP request for vectors, from submission to its answer. Each of its texts is one
// request of the controller.
//
// The controller's thread only stores outputs; a worker thread, one at a time, counts them, and
// writes the answer when all have come or one has failed. A disconnect aborts the requests from the
// thread that notices it. The controller's sinks and the worker's task own the embedding.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/generation/model_context.h"

namespace millrace::serve {

struct EmbeddingSpec {
  VectorOptions options;
  std::vector<std::vector<TokenId>> prompts;  // at least one
  std::string id;                             // of the answer
  std::string request_id;                     // x-request-id
  std::string route;
  std::string cache_salt;
  std::string owner;  // Call::owner
  Time arrived;
  std::optional<TraceContext> trace;
  // The body of the answer, of the vectors in the order of the prompts and of their fingerprints.
  std::function<Json(std::vector<std::vector<float>>, const std::string&)> answer;
  std::function<void(const ApiError&)> refuse;  // in place of the answer

  int64_t prompt_tokens() const;
};

class Embedding : public std::enable_shared_from_this<Embedding> {
 public:
  // Submits every prompt, or answers with the error of the first prompt that is refused.
  static void Begin(std::shared_ptr<ModelContext> model_context, EmbeddingSpec spec,
                    std::shared_ptr<net::HttpReply> reply);
  ~Embedding();

 private:
  struct Mail {
    size_t prompt = 0;
    Time at;
    RequestOutput output;
  };

  Embedding(std::shared_ptr<ModelContext> model_context, EmbeddingSpec spec,
            std::shared_ptr<net::HttpReply> reply);

  void SubmitAll();
  Status SubmitOne(size_t prompt);
  void Cancel();
  void AbortAll();

  void Deliver(size_t prompt, RequestOutput&& output);  // controller's thread
  void ScheduleIfNeeded() MR_REQUIRES(mutex_);
  void Run();  // a worker
  void Take(Mail& mail);
  void Observe(const Mail& last);
  void Answer();
  void NoteDelivered();

  const std::shared_ptr<ModelContext> model_context_;
  const EmbeddingSpec spec_;
  const std::shared_ptr<net::HttpReply> reply_;

  Mutex mutex_;
  std::vector<Mail> mailbox_ MR_GUARDED_BY(mutex_);  // bounded: few outputs per prompt
  std::vector<RequestId> submitted_ MR_GUARDED_BY(mutex_);
  bool begun_ MR_GUARDED_BY(mutex_) = false;      // all prompts are submitted
  bool scheduled_ MR_GUARDED_BY(mutex_) = false;  // a worker runs it or is about to
  bool answered_ MR_GUARDED_BY(mutex_) = false;   // or nobody listens

  // Used by the worker only.
  std::vector<std::vector<float>> vectors_;  // by prompt
  size_t arrived_ = 0;                       // of them
  std::optional<ApiError> error_;            // of the first prompt that failed
  std::vector<std::string> fingerprints_;    // of the vectors, each once
};

}  // namespace millrace::serve
