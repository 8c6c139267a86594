#include "sim/fast/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <tuple>

#include "sim/fast/trial_instance.h"

namespace millrace::sim {
namespace {

using trial::Instance;
using trial::Request;

struct Event {
  enum class Kind : uint8_t { kStepDone, kKick, kTransferDone };
  double time_s = 0;
  uint64_t sequence = 0;
  Kind kind = Kind::kStepDone;
  int subject = 0;  // an instance; of kTransferDone: a request
  int lane = 0;     // of kTransferDone: the decode instance

  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.time_s, a.sequence) > std::tie(b.time_s, b.sequence);
  }
};

class Run {
 public:
  Run(const TrialDeployment& deployment, const std::vector<TrialRequest>& requests,
      const TrialLimits& limits, bool keep_times);
  TrialReport Go();

 private:
  bool disaggregated() const { return deployment_.mode == TrialMode::kDisaggregated; }
  void Push(double time_s, Event::Kind kind, int subject, int lane = 0) {
    events_.push({time_s, sequence_++, kind, subject, lane});
  }
  double Score(int prefill, int prompt) const;
  int LeastLoadedDecode(int prefill, int prompt) const;
  void Arrive(int id);
  void Start(int instance);
  void StepDone(int instance, int lane);
  void HandOver(int id);
  void Pull(int decode);
  void TransferDone(int id, int decode);
  void End(int id, double tpot_s);

  const TrialDeployment& deployment_;
  const TrialLimits& limits_;
  const bool keep_times_;
  std::vector<Request> requests_;
  std::vector<Instance> instances_;  // prefills, then decodes
  std::vector<double> link_free_s_;  // per prefill instance
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<int> prefilled_, ended_;
  TrialReport report_;
  uint64_t sequence_ = 0;
  double now_s_ = 0;
  int misses_ = 0;
};

Run::Run(const TrialDeployment& deployment, const std::vector<TrialRequest>& requests,
         const TrialLimits& limits, bool keep_times)
    : deployment_(deployment), limits_(limits), keep_times_(keep_times) {
  requests_.reserve(requests.size());
  for (const TrialRequest& r : requests) {
    requests_.push_back(
        {.arrival_s = r.arrival_s, .prompt = r.prompt_tokens, .output = r.output_tokens});
  }
  const bool apart = disaggregated();
  for (int i = 0; i < deployment.prefills; ++i) {
    instances_.emplace_back(
        deployment, deployment.prefill,
        trial::Duties{
            .prefill = true, .decode = !apart, .chunked = deployment.mode == TrialMode::kChunked},
        requests_);
  }
  for (int i = 0; apart && i < deployment.decodes; ++i) {
    instances_.emplace_back(deployment, deployment.decode, trial::Duties{.decode = true},
                            requests_);
  }
  link_free_s_.resize(deployment.prefills, 0.0);
  if (keep_times) report_.times.resize(requests.size());
}

// Lower is better. Loaded decode partners also make a prefill instance a worse choice.
double Run::Score(int prefill, int prompt) const {
  const Instance& instance = instances_[prefill];
  if (deployment_.dispatch == TrialDispatch::kFewestRequests) {
    return static_cast<double>(instance.requests());
  }
  double score = instance.PredictedWait(now_s_);
  if (disaggregated() && deployment_.decodes > 0 && deployment_.groups > 1) {
    score += instances_[LeastLoadedDecode(prefill, prompt)].PredictedDecode(prompt);
  }
  return score;
}

void Run::Arrive(int id) {
  // Ties go round-robin.
  const int first = id % deployment_.prefills;
  int best = first;
  double best_score = Score(first, requests_[id].prompt);
  for (int k = 1; k < deployment_.prefills; ++k) {
    const int i = (first + k) % deployment_.prefills;
    const double score = Score(i, requests_[id].prompt);
    if (score < best_score) {
      best = i;
      best_score = score;
    }
  }
  requests_[id].prefill_owner = best;
  instances_[best].AddPrompt(id);
  Start(best);
}

void Run::Start(int index) {
  while (const auto step = instances_[index].TryStart(now_s_)) {
    Push(step->end_s, Event::Kind::kStepDone, index, step->lane);
    if (step->next_start_s < step->end_s) Push(step->next_start_s, Event::Kind::kKick, index);
  }
}

void Run::StepDone(int index, int lane) {
  prefilled_.clear();
  ended_.clear();
  Instance& instance = instances_[index];
  instance.Finish(lane, now_s_, prefilled_, ended_);
  for (const int id : ended_) {
    const Request& r = requests_[id];
    instance.NoteLeft();
    End(id, (now_s_ - r.first_s) / (r.output - 1));
  }
  for (const int id : prefilled_) {
    Request& r = requests_[id];
    const bool decode_later = disaggregated() && deployment_.decodes > 0 && r.output > 1;
    if (disaggregated()) {
      instance.NoteLeft();
      // The KV stays where it is until it is pulled.
      if (!decode_later) instance.Free(r.prompt);
    } else if (r.output == 1) {
      instance.NoteLeft();
    }
    if (decode_later) {
      HandOver(id);
    } else if (r.output == 1 || disaggregated()) {
      End(id, 0);
    }
  }
  if (index >= deployment_.prefills) Pull(index);
  Start(index);
}

// Chooses among the decode instances to which this prefill instance may send.
int Run::LeastLoadedDecode(int prefill, int prompt) const {
  const int per_group = deployment_.decodes / deployment_.groups;
  const int group = prefill / (deployment_.prefills / deployment_.groups);
  const int first = deployment_.prefills + group * per_group;
  int best = first;
  double best_s = instances_[first].PredictedDecode(prompt);
  for (int i = first + 1; i < first + per_group; ++i) {
    const double predicted_s = instances_[i].PredictedDecode(prompt);
    if (predicted_s < best_s) {
      best = i;
      best_s = predicted_s;
    }
  }
  return best;
}

void Run::HandOver(int id) {
  const int best = LeastLoadedDecode(requests_[id].prefill_owner, requests_[id].prompt);
  instances_[best].HandOver(id);
  Pull(best);
}

// The decode side takes the requests that fit, in order.
void Run::Pull(int decode) {
  Instance& instance = instances_[decode];
  while (const auto waiting = instance.WaitingForMemory()) {
    const int id = *waiting;
    const Request& r = requests_[id];
    const int64_t footprint = int64_t{r.prompt} + r.output;
    if (!instance.Fits(footprint)) return;
    instance.TakeWaiting();
    instance.Reserve(footprint);
    double arrives_s = now_s_ + deployment_.kv_latency_s;
    if (deployment_.kv_bytes_per_s > 0) {
      double& free_s = link_free_s_[r.prefill_owner];
      free_s = std::max(free_s, now_s_) +
               deployment_.kv_bytes_per_token * r.prompt / deployment_.kv_bytes_per_s;
      arrives_s = free_s + deployment_.kv_latency_s;
    }
    Push(arrives_s, Event::Kind::kTransferDone, id, decode);
  }
}

void Run::TransferDone(int id, int decode) {
  const Request& r = requests_[id];
  instances_[r.prefill_owner].Free(r.prompt);
  instances_[decode].AddDecode(id, now_s_);
  Start(r.prefill_owner);  // a prefill may have waited for this memory
  Start(decode);
}

void Run::End(int id, double tpot_s) {
  const Request& r = requests_[id];
  const double ttft_s = r.first_s - r.arrival_s;
  const bool met_ttft = ttft_s <= limits_.ttft_s, met_tpot = tpot_s <= limits_.tpot_s;
  report_.met_ttft += met_ttft;
  report_.met_tpot += met_tpot;
  report_.met_both += met_ttft && met_tpot;
  misses_ += !(met_ttft && met_tpot);
  if (keep_times_) report_.times[id] = {ttft_s, tpot_s};
}

TrialReport Run::Go() {
  report_.requests = static_cast<int>(requests_.size());
  const double misses_allowed = (1 - limits_.give_up_below) * report_.requests;
  size_t next = 0;
  while (next < requests_.size() || !events_.empty()) {
    if (limits_.give_up_below > 0 && misses_ > misses_allowed) {
      report_.gave_up = true;
      break;
    }
    if (next < requests_.size() &&
        (events_.empty() || requests_[next].arrival_s <= events_.top().time_s)) {
      now_s_ = requests_[next].arrival_s;
      Arrive(static_cast<int>(next++));
      continue;
    }
    const Event event = events_.top();
    events_.pop();
    now_s_ = event.time_s;
    switch (event.kind) {
      case Event::Kind::kStepDone: StepDone(event.subject, event.lane); break;
      case Event::Kind::kKick: Start(event.subject); break;
      case Event::Kind::kTransferDone: TransferDone(event.subject, event.lane); break;
    }
  }
  report_.end_s = now_s_;
  return std::move(report_);
}

Status Check(const TrialDeployment& deployment, const std::vector<TrialRequest>& requests) {
  const bool apart = deployment.mode == TrialMode::kDisaggregated;
  const bool decodes = apart && deployment.decodes > 0;
  if (deployment.prefills < 1 || deployment.prefill.stages.empty() ||
      (decodes && deployment.decode.stages.empty())) {
    return InvalidArgument("a deployment needs instances with at least one stage");
  }
  if (deployment.prefill_batch_tokens < 1 || deployment.sequences_max < 1) {
    return InvalidArgument("a batch needs room for one token and one sequence");
  }
  if (deployment.groups < 1 || deployment.prefills % deployment.groups != 0 ||
      (decodes && deployment.decodes % deployment.groups != 0)) {
    return InvalidArgument(fmt::format("{} groups do not divide {} and {} instances",
                                       deployment.groups, deployment.prefills, deployment.decodes));
  }
  for (const TrialRequest& r : requests) {
    if (r.prompt_tokens < 1 || r.output_tokens < 1) {
      return InvalidArgument(fmt::format("a request of {} prompt and {} output tokens",
                                         r.prompt_tokens, r.output_tokens));
    }
    const int64_t whole = int64_t{r.prompt_tokens} + r.output_tokens;
    const int64_t first = apart ? r.prompt_tokens : whole;
    if (first > deployment.prefill.kv_tokens || (decodes && whole > deployment.decode.kv_tokens)) {
      return InvalidArgument(fmt::format(
          "a request of {} + {} tokens does not fit: KV memory holds {} at prefill, {} at decode",
          r.prompt_tokens, r.output_tokens, deployment.prefill.kv_tokens,
          deployment.decode.kv_tokens));
    }
  }
  return {};
}

}  // namespace

Result<TrialReport> RunTrial(const TrialDeployment& deployment,
                             const std::vector<TrialRequest>& requests, const TrialLimits& limits,
                             bool keep_times) {
  MR_RETURN_IF_ERROR(Check(deployment, requests));
  return Run(deployment, requests, limits, keep_times).Go();
}

}  // namespace millrace::sim
