// One instance of a trial: lanes that take turns in a pipeline of stages. A lane is a batch of
// sequences in lockstep, kept as a count and a sum. Owned by the trial; one thread.
#pragma once

#include <deque>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "sim/fast/trial.h"

namespace millrace::sim::trial {

struct Request {
  double arrival_s = 0;
  int prompt = 0, output = 0;
  int prefilled = 0;       // tokens
  double first_s = 0;      // time of the first token
  double predicted_s = 0;  // of its prefill, as counted by the dispatcher
  int prefill_owner = 0;
};

// The kinds of work that an instance does in its steps.
struct Duties {
  bool prefill = false, decode = false, chunked = false;
};

struct Step {
  int lane = 0;
  double end_s = 0;         // through the last stage
  double next_start_s = 0;  // when the first stage is free again
};

class Instance {
 public:
  Instance(const TrialDeployment& deployment, const TrialInstance& kind, Duties duties,
           std::vector<Request>& requests);

  // Adds a prompt to compute, or a request whose KV has arrived and fits (see Reserve).
  void AddPrompt(int id);
  void AddDecode(int id, double now_s);

  // Starts a step if the first stage is free and a lane has work.
  std::optional<Step> TryStart(double now_s);
  // The step of `lane` ended. Reports the prompts that are done and the sequences that got their
  // last token.
  void Finish(int lane, double now_s, std::vector<int>& prefilled, std::vector<int>& ended);

  // KV memory. A prefill instance holds prompts, the others whole requests.
  bool Fits(int64_t tokens) const { return kv_used_ + tokens <= kind_.kv_tokens; }
  void Reserve(int64_t tokens) { kv_used_ += tokens; }
  void Free(int64_t tokens) { kv_used_ -= tokens; }

  // Approximate seconds until a new prompt would start, for the dispatcher.
  double PredictedWait(double now_s) const;
  // Seconds of a decode step with `tokens` more in the batch.
  double PredictedDecode(int64_t tokens) const;
  int64_t requests() const { return requests_here_; }
  void NoteLeft() { --requests_here_; }

  // Adds a request prefilled elsewhere; it waits here for memory, in order.
  void HandOver(int id) {
    handed_over_.push_back(id);
    handed_over_tokens_ += requests_[id].prompt;
  }
  std::optional<int> WaitingForMemory() const {
    return handed_over_.empty() ? std::nullopt : std::optional(handed_over_.front());
  }
  void TakeWaiting() {
    handed_over_tokens_ -= requests_[handed_over_.front()].prompt;
    handed_over_.pop_front();
  }

 private:
  struct Lane {
    bool busy = false;
    int64_t steps = 0;  // completed decode steps
    int decoding = 0;
    int64_t context = 0;         // of the decoding sequences, with their next tokens
    std::vector<int> prompts;    // in the current step
    std::optional<int> partial;  // a prompt cut by chunking
    bool decodes_now = false;
    // (decode step after which it ends, request)
    std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>,
                        std::greater<>>
        ends;
  };

  cost::BatchShape Compose(Lane& lane);
  void TakePrompts(Lane& lane, cost::BatchShape& shape);
  void TakeChunk(Lane& lane, cost::BatchShape& shape, int budget);
  bool AdmitFront(const Lane& lane);
  void StartDecoding(Lane& lane, int id);
  int64_t Footprint(const Request& r) const {
    return duties_.decode ? int64_t{r.prompt} + r.output : r.prompt;
  }

  const TrialDeployment& deployment_;
  const TrialInstance& kind_;
  const Duties duties_;
  std::vector<Request>& requests_;
  std::vector<Lane> lanes_;
  std::vector<double> stage_free_s_;
  std::deque<int> prompts_, handed_over_;
  int64_t handed_over_tokens_ = 0;
  size_t next_lane_ = 0;
  int64_t kv_used_ = 0;
  int64_t requests_here_ = 0;
  double backlog_s_ = 0;  // predicted seconds of the waiting prompts
};

}  // namespace millrace::sim::trial
