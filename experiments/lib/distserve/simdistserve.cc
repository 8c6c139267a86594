#include "experiments/lib/distserve/simdistserve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <queue>
#include <tuple>

namespace millrace::experiments::distserve {
namespace {

using cost::BatchShape;
using cost::DistServeCost;
using cost::DistServeStage;

constexpr double kMsPerSecond = 1e3;

struct Request {
  double arrival_ms = 0;
  int prompt = 0, output = 0;
  int generated = 0;
  uint64_t prefill_batch = 0;  // the requests that go through the prefill ring together
  double prefilled_ms = 0, left_ms = 0;

  int context() const { return prompt + generated; }
  bool Finished() const { return generated >= output; }
};

struct Worker {
  Worker(DistServeCost prefill, DistServeCost decode)
      : prefill_cost(prefill), decode_cost(decode) {}

  DistServeCost prefill_cost, decode_cost;
  bool first = false, last = false;
  bool hands_over = false;  // its finished prefills go to the decode instance
  int next = 0;             // in the ring
  std::deque<int> prefill_queue, decode_queue;
  // The current work; at most one of the two is in use.
  std::vector<int> prefill_batch, decode_batch;
  bool idle = true;
  bool woken = false;  // its wake-up event is scheduled
};

struct Event {
  enum class Kind : uint8_t { kArrival, kWake, kDone };
  double time_ms = 0;
  uint64_t sequence = 0;  // on equal times, the first scheduled is the first served
  Kind kind = Kind::kArrival;
  int subject = 0;  // a request or a worker

  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.time_ms, a.sequence) > std::tie(b.time_ms, b.sequence);
  }
};

class Simulation {
 public:
  Simulation(const SimDistServeOptions& options, const std::vector<SimDistServeRequest>& requests);
  SimDistServeResult Run();

 private:
  void AddRing(int stages, bool hands_over);
  void Schedule(double time_ms, Event::Kind kind, int subject) {
    events_.push({time_ms, sequence_++, kind, subject});
  }
  void Wake(int worker);
  void StartStep(int worker);
  double StartPrefill(Worker& worker);
  double StartDecode(Worker& worker);
  void FinishStep(int worker);
  void FinishPrefill(Worker& worker);
  void FinishDecode(Worker& worker);

  const SimDistServeOptions& options_;
  std::vector<Request> requests_;
  std::vector<Worker> workers_;
  int decode_head_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t sequence_ = 0, prefill_batches_ = 0;
  double now_ms_ = 0;
};

Simulation::Simulation(const SimDistServeOptions& options,
                       const std::vector<SimDistServeRequest>& requests)
    : options_(options) {
  requests_.reserve(requests.size());
  for (const auto& r : requests) {
    requests_.push_back(
        {.arrival_ms = r.arrival_ms, .prompt = r.prompt_tokens, .output = r.output_tokens});
  }
  AddRing(options.prefill_stages, !options.colocated);
  if (!options.colocated) {
    decode_head_ = static_cast<int>(workers_.size());
    AddRing(options.decode_stages, false);
  }
}

void Simulation::AddRing(int stages, bool hands_over) {
  const int head = static_cast<int>(workers_.size());
  const auto& decode = options_.colocated ? options_.prefill : options_.decode;
  for (int i = 0; i < stages; ++i) {
    const auto stage = DistServeStage::Released(stages, i == 0);
    Worker& worker =
        workers_.emplace_back(DistServeCost(options_.prefill, stage), DistServeCost(decode, stage));
    worker.first = i == 0;
    worker.last = i == stages - 1;
    worker.hands_over = worker.last && hands_over;
    worker.next = worker.last ? head : head + i + 1;
  }
}

// An idle worker starts only at its wake-up event, after all other events of the same moment, so
// that all requests that leave a batch together arrive together.
void Simulation::Wake(int w) {
  Worker& worker = workers_[w];
  if (!worker.idle || worker.woken) return;
  worker.woken = true;
  Schedule(now_ms_, Event::Kind::kWake, w);
}

double Simulation::StartPrefill(Worker& worker) {
  auto& queue = worker.prefill_queue;
  auto& batch = worker.prefill_batch;
  BatchShape shape;
  // A later stage takes the requests that the first stage sent together.
  const uint64_t id = worker.first ? ++prefill_batches_ : requests_[queue.front()].prefill_batch;
  while (!queue.empty()) {
    Request& r = requests_[queue.front()];
    if (worker.first) {
      if (shape.prefill_tokens + r.prompt > options_.prefill_tokens_max) break;
      r.prefill_batch = id;
    } else if (r.prefill_batch != id) {
      break;
    }
    shape.prefill_tokens += r.prompt;
    shape.prefill_tokens_squared += int64_t{r.prompt} * r.prompt;
    ++shape.prefill_sequences;
    batch.push_back(queue.front());
    queue.pop_front();
  }
  return worker.prefill_cost.Seconds(shape);
}

double Simulation::StartDecode(Worker& worker) {
  auto& queue = worker.decode_queue;
  BatchShape shape;
  while (!queue.empty()) {
    const int tokens = requests_[queue.front()].context() + 1;
    if (shape.decode_context + tokens > options_.decode_tokens_max) break;
    shape.decode_context += tokens;
    ++shape.decode_sequences;
    worker.decode_batch.push_back(queue.front());
    queue.pop_front();
  }
  return worker.decode_cost.Seconds(shape);
}

void Simulation::StartStep(int w) {
  Worker& worker = workers_[w];
  worker.idle = worker.prefill_queue.empty() && worker.decode_queue.empty();
  if (worker.idle) return;
  const double seconds = worker.prefill_queue.empty() ? StartDecode(worker) : StartPrefill(worker);
  Schedule(now_ms_ + seconds * kMsPerSecond, Event::Kind::kDone, w);
}

void Simulation::FinishPrefill(Worker& worker) {
  for (const int id : worker.prefill_batch) {
    Request& r = requests_[id];
    if (!worker.last) {
      workers_[worker.next].prefill_queue.push_back(id);
      Wake(worker.next);
      continue;
    }
    r.prefilled_ms = r.left_ms = now_ms_;
    if (r.Finished()) continue;
    const int target = worker.hands_over ? decode_head_ : worker.next;
    workers_[target].decode_queue.push_back(id);
    Wake(target);
  }
  worker.prefill_batch.clear();
}

void Simulation::FinishDecode(Worker& worker) {
  auto& queue = workers_[worker.next].decode_queue;
  for (const int id : worker.decode_batch) {
    Request& r = requests_[id];
    if (worker.last && ++r.generated >= r.output) {
      r.left_ms = now_ms_;
      continue;
    }
    queue.push_back(id);
  }
  worker.decode_batch.clear();
  if (!queue.empty()) Wake(worker.next);
}

void Simulation::FinishStep(int w) {
  Worker& worker = workers_[w];
  FinishPrefill(worker);
  FinishDecode(worker);
  StartStep(w);
}

SimDistServeResult Simulation::Run() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    Schedule(requests_[i].arrival_ms, Event::Kind::kArrival, static_cast<int>(i));
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ms_ = event.time_ms;
    switch (event.kind) {
      case Event::Kind::kArrival:
        workers_[0].prefill_queue.push_back(event.subject);
        Wake(0);
        break;
      case Event::Kind::kWake:
        workers_[event.subject].woken = false;
        StartStep(event.subject);
        break;
      case Event::Kind::kDone: FinishStep(event.subject); break;
    }
  }
  SimDistServeResult result;
  result.makespan_ms = now_ms_;
  result.times.reserve(requests_.size());
  for (const Request& r : requests_) {
    result.times.push_back({.ttft_ms = r.prefilled_ms - r.arrival_ms,
                            .tpot_ms = r.output > 0 ? (r.left_ms - r.prefilled_ms) / r.output : 0,
                            .e2e_ms = r.left_ms - r.arrival_ms});
  }
  return result;
}

}  // namespace

Result<SimDistServeResult> SimulateSimDistServe(const SimDistServeOptions& options,
                                                const std::vector<SimDistServeRequest>& requests) {
  if (options.prefill_stages < 1 || options.decode_stages < 1) {
    return InvalidArgument(fmt::format("an instance needs at least one stage, got {} and {}",
                                       options.prefill_stages, options.decode_stages));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& r = requests[i];
    if (r.prompt_tokens < 1 || r.output_tokens < 0) {
      return InvalidArgument(fmt::format("request {}: {} prompt and {} output tokens", i,
                                         r.prompt_tokens, r.output_tokens));
    }
    if (i > 0 && r.arrival_ms < requests[i - 1].arrival_ms) {
      return InvalidArgument(fmt::format("request {} arrives before the one above it", i));
    }
    if (r.prompt_tokens > options.prefill_tokens_max) {
      return InvalidArgument(fmt::format("request {}: {} prompt tokens, a prefill batch holds {}",
                                         i, r.prompt_tokens, options.prefill_tokens_max));
    }
    if (r.prompt_tokens > options.decode_tokens_max - r.output_tokens) {
      return InvalidArgument(fmt::format("request {}: {} + {} tokens, a decode batch holds {}", i,
                                         r.prompt_tokens, r.output_tokens,
                                         options.decode_tokens_max));
    }
  }
  return Simulation(options, requests).Run();
}

}  // namespace millrace::experiments::distserve
