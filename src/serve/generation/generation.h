// Generation: one HTTP request for text, from submission to its last byte. It may consist of many
// requests of the controller (a batch of prompts), each with n sequences.
//
// The controller's thread only appends outputs to a bounded mailbox. A worker thread turns them
// into text and bytes, one worker at a time per generation. A disconnect aborts the requests from
// the thread that notices it. The controller's sinks and the worker's task own the generation.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cluster/recovered_requests.h"
#include "net/http/http.h"
#include "serve/answer/answer.h"
#include "serve/answer/answer_split.h"
#include "serve/answer/choice.h"
#include "serve/generation/model_context.h"

namespace millrace::serve {

// Outputs of one HTTP request that may wait for a worker. The request fails beyond this number.
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
  std::shared_ptr<AnswerWriter> writer;  // of another API; null: OpenAI's form
  AnswerSplit split;                     // chat
  bool echo = false;
  bool echo_only = false;
  ResponseHead head;
  std::string request_id;  // x-request-id
  std::string route;
  std::string cache_salt;
  std::string owner;             // Call::owner
  bool resumable = false;        // the stream is kept; the journal gets what continues it
  bool event_per_token = false;  // regardless of timing, for a stream that is kept
  Time arrived;
  std::optional<TraceContext> trace;  // Call::trace
  std::string body;                   // of the request, if it is logged
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits every prompt, or answers with the error of the first prompt that is refused.
  static void Begin(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                    std::shared_ptr<net::HttpReply> reply);
  // Continues a generation of the previous run: writes its events to `reply` again, then resumes
  // the requests that have not finished. `earlier` holds one request per prompt. Returns false, and
  // drops `reply`, if the generation had failed or its record is inconsistent; the caller then
  // drops the unfinished requests.
  static bool Restore(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                      std::shared_ptr<net::HttpReply> reply,
                      std::vector<cluster::RecoveredRequest> earlier,
                      cluster::RecoveredRequests& requests);
  ~Generation();

  // Sends a ping soon if the stream has been silent for `silence`. Any thread.
  void PingIfSilent(Time now, Duration silence);

 private:
  struct Mail {
    int prompt = 0;
    Time at;
    RequestOutput output;
  };
  // The state of one prompt; used by the worker only.
  struct PromptState {
    int cached_tokens = 0;
    bool first_token_seen = false;
    std::optional<Duration> ttft;  // unset also if it was before a restart
    TokenReports reports;
    uint64_t seed = 0;
    // Requests of the controller that compute its sequences: one, or as many as there are
    // sequences.
    int parts = 1, parts_ended = 0;
    bool ended = false;
    std::optional<AnswerTimes> times;  // once it has ended
  };

  Generation(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
             std::shared_ptr<net::HttpReply> reply);

  void AbortWhenDisconnected();
  bool ReplayOutputs(const std::vector<cluster::RecoveredRequest>& earlier);
  bool ReplayOutputs(int prompt, const RequestOutput& output);
  void ResumeAll(const std::vector<cluster::RecoveredRequest>& earlier,
                 cluster::RecoveredRequests& requests);
  Status ResumePrompt(int prompt, const cluster::RecoveredRequest& earlier,
                      cluster::RecoveredRequests& requests);
  bool AllEnded(int prompt) const;
  bool Complete() const;
  void SubmitAll();
  std::optional<ApiError> RefuseEarly() const;
  std::optional<ApiError> SubmitOne(int prompt);
  std::optional<ApiError> SubmitInParts(int prompt);
  Result<RequestId> Submit(int prompt, std::optional<int> sequence);
  void Submitted(RequestId id, int prompt);
  // Aborts all submitted requests and stops answering. Any thread.
  void Cancel();
  void AbortAll();

  void Deliver(int prompt, RequestOutput&& output);  // controller's thread
  void ScheduleIfNeeded() MR_REQUIRES(mutex_);
  void NoteDelivered();
  void Run();  // a worker
  void Process(Mail& mail);
  void TakeFingerprint(int prompt, const RequestOutput& output);
  void TakePromptReports(int prompt, const RequestOutput& output);
  bool ApplyOutput(Choice& choice, const RequestOutput& output);
  void Finish();
  std::vector<Choice> TakeLikeliest(size_t kept);
  void Log(const std::vector<Choice>& answers) const;
  void ObserveLatency(const Mail& mail, PromptState& state, Choice& choice);
  void EndRequest(const Mail& mail);
  FinishedRequest EndPrompt(const Mail& mail);
  void Fail(const ApiError& error);
  UsageCounts Usage() const;

  const std::shared_ptr<ModelContext> model_context_;
  const GenerationSpec spec_;
  const std::shared_ptr<net::HttpReply> reply_;

  Mutex mutex_;
  std::vector<Mail> mailbox_ MR_GUARDED_BY(mutex_);
  std::vector<RequestId> submitted_ MR_GUARDED_BY(mutex_);
  bool begun_ MR_GUARDED_BY(mutex_) = false;      // all prompts are submitted
  bool scheduled_ MR_GUARDED_BY(mutex_) = false;  // a worker runs it or is about to
  bool cancelled_ MR_GUARDED_BY(mutex_) = false;
  bool overflowed_ MR_GUARDED_BY(mutex_) = false;
  bool ping_ MR_GUARDED_BY(mutex_) = false;  // is due
  Time written_ MR_GUARDED_BY(mutex_);       // when it last had something to write

  // Used by the worker only.
  Answer answer_;
  std::vector<Choice> choices_;  // n per prompt, in the order of the prompts
  std::vector<PromptState> prompts_;
  size_t finished_choices_ = 0;
  bool delivered_ = false;  // the registry knows that the answer is over
  bool answered_ = false;
};

}  // namespace millrace::serve
