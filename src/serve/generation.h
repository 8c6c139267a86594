// Generation: one HTTP request for text from submission to its last byte. It may be many requests
// of the engine (a batch of prompts), each of n sequences.
//
// The engine's thread only appends output to a bounded mailbox; a worker thread turns them into
// text and bytes, one worker at a time per generation; a disconnect aborts from whatever thread
// notices it. Kept alive by the engine's sinks and the worker's task: gone when both have let go.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/recovered_requests.h"
#include "net/http.h"
#include "serve/answer.h"
#include "serve/choice.h"
#include "serve/model_context.h"

namespace millrace::serve {

// News of one HTTP request that wait for a worker; beyond it the request fails.
inline constexpr size_t kMailboxOutputsMax = 1 << 16;

struct PromptInput {
  std::vector<TokenId> tokens;
  std::string echo;  // the prompt's text, when it is echoed
  int max_tokens = 0;
};

struct GenerationSpec {
  GenerationOptions options;
  std::vector<PromptInput> prompts;
  AnswerFormat format;
  bool echo = false;
  bool echo_only = false;
  ResponseHead head;
  std::string request_id;  // x-request-id
  std::string route;
  std::string cache_salt;
  std::string owner;       // whose it is: Call::owner
  bool resumable = false;  // a stream that is kept: one event per token, whenever they come
  Time arrived;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits every prompt, or answers with the error of the first that is refused.
  static void Begin(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                    std::shared_ptr<net::HttpReply> reply);
  // Writes the events of an earlier life to `reply` again, then lets what has not finished go on.
  // `earlier`: a request per prompt. False: it had failed; `reply` is dropped, and with it what has
  // not finished.
  static bool Restore(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                      std::shared_ptr<net::HttpReply> reply,
                      std::vector<engine::RecoveredRequest> earlier,
                      engine::RecoveredRequests& requests);
  ~Generation();

 private:
  struct Mail {
    int prompt = 0;
    Time at;
    RequestOutput output;
  };
  // The state of one prompt; worker's.
  struct PromptState {
    int cached_tokens = 0;
    bool first_token_seen = false;
    TokenReports reports;
  };

  Generation(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
             std::shared_ptr<net::HttpReply> reply);

  void AbortWhenDisconnected();
  bool ReplayOutputs(const std::vector<engine::RecoveredRequest>& earlier);
  bool ReplayOutputs(int prompt, const RequestOutput& output);
  void ResumeAll(const std::vector<engine::RecoveredRequest>& earlier,
                 engine::RecoveredRequests& requests);
  Status ResumePrompt(int prompt, const engine::RecoveredRequest& earlier,
                      engine::RecoveredRequests& requests);
  bool AllEnded(int prompt) const;
  void SubmitAll();
  std::optional<ApiError> SubmitOne(int prompt);
  void Submitted(RequestId id, int prompt);
  // Aborts everything that was submitted; nothing is answered any more. Any thread.
  void Cancel();
  void AbortAll();

  void Deliver(int prompt, RequestOutput&& output);  // engine's thread
  void ScheduleIfNeeded() MR_REQUIRES(mutex_);
  void Run();  // a worker
  void Process(Mail& mail);
  void TakePromptReports(int prompt, const RequestOutput& output);
  bool ApplyOutput(Choice& choice, const RequestOutput& output);
  void Finish();
  void ObserveLatency(const Mail& mail, PromptState& state, Choice& choice);
  void EndPrompt(const Mail& mail);
  void Fail(const ApiError& error);
  UsageCounts Usage() const;

  const std::shared_ptr<ModelContext> model_context_;
  const GenerationSpec spec_;
  const std::shared_ptr<net::HttpReply> reply_;

  Mutex mutex_;
  std::vector<Mail> mailbox_ MR_GUARDED_BY(mutex_);
  std::vector<RequestId> submitted_ MR_GUARDED_BY(mutex_);
  bool begun_ MR_GUARDED_BY(mutex_) = false;      // submission is over
  bool scheduled_ MR_GUARDED_BY(mutex_) = false;  // a worker has it or will
  bool cancelled_ MR_GUARDED_BY(mutex_) = false;
  bool overflowed_ MR_GUARDED_BY(mutex_) = false;

  // The worker's.
  Answer answer_;
  std::vector<Choice> choices_;  // prompt after prompt, n each
  std::vector<PromptState> prompts_;
  size_t finished_choices_ = 0;
  bool answered_ = false;
};

}  // namespace millrace::serve
