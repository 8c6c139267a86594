#include "apps/drill/stream_clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "net/http/sse.h"

namespace millrace::apps {
namespace {

constexpr int kStreamOk = 200, kStreamBusy = 503;
constexpr size_t kRefusalBytesMax = 4096;
constexpr auto kAbortPoll = std::chrono::milliseconds(50);
constexpr auto kRetryPause = std::chrono::milliseconds(50);
constexpr double kSeededTemperature = 0.9;

std::string BodyOf(const DrillRequest& request, const std::string& id) {
  return DumpJson({{"prompt", request.prompt},
                   {"max_tokens", request.max_tokens},
                   {"temperature", request.greedy ? 0.0 : kSeededTemperature},
                   {"seed", request.seed},
                   {"ignore_eos", true},
                   {"stream", true},
                   {"stream_options", {{"include_usage", true}}},
                   {"request_id", id}});
}

}  // namespace

// What has been read of one answer, over all its connections. The HTTP client's thread fills it in.
class StreamClients::Reading {
 public:
  explicit Reading(const StreamClients& owner) : owner_(owner) {}

  // A connection begins.
  void Begin() {
    const MutexLock lock(mutex_);
    status_ = 0;
    ended_.reset();
    refusal_.clear();
    parser_ = std::make_unique<net::SseParser>(
        [this](std::string_view, std::string_view data) MR_NO_THREAD_SAFETY_ANALYSIS {
          Event(data);  // within Data, which holds the lock
        });
  }
  void Head(int status) {
    const MutexLock lock(mutex_);
    status_ = status;
  }
  void Data(std::string_view part) {
    const MutexLock lock(mutex_);
    if (status_ != kStreamOk) {
      refusal_ += part.substr(0, kRefusalBytesMax - std::min(kRefusalBytesMax, refusal_.size()));
      return;
    }
    const Status fed = parser_->Feed(part);
    if (!fed.ok()) error_ = fed.message();
  }
  void Done(Status status) {
    const MutexLock lock(mutex_);
    ended_ = std::move(status);
    changed_.notify_all();
  }
  // True when the connection has ended within a moment.
  bool WaitAMoment() {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, kAbortPoll,
                             [this]() MR_REQUIRES(mutex_) { return ended_.has_value(); });
  }

  std::string last_id() const {
    const MutexLock lock(mutex_);
    return last_id_;
  }
  bool began() const {
    const MutexLock lock(mutex_);
    return !answer_.pieces_s.empty();
  }
  bool whole() const {
    const MutexLock lock(mutex_);
    return whole_;
  }
  // HTTP's status of the last connection; 0: none.
  int status() const {
    const MutexLock lock(mutex_);
    return status_;
  }
  // Why the last connection brought no whole answer.
  std::string Trouble() const {
    const MutexLock lock(mutex_);
    if (!error_.empty()) return error_;
    if (status_ != 0 && status_ != kStreamOk) {
      return fmt::format("HTTP {}: {}", status_, Printable(refusal_));
    }
    if (ended_ && !ended_->ok()) return ended_->message();
    return "the stream broke off";
  }
  // Pieces of text so far.
  size_t progress() const {
    const MutexLock lock(mutex_);
    return answer_.pieces_s.size();
  }
  void MoveInto(DrillAnswer& answer) {
    const MutexLock lock(mutex_);
    answer.text = std::move(answer_.text);
    answer.pieces_s = std::move(answer_.pieces_s);
    answer.tokens = answer_.tokens;
  }

 private:
  void Event(std::string_view data) MR_REQUIRES(mutex_) {
    if (data == "[DONE]") {
      whole_ = true;
      return;
    }
    const auto event = ParseJson(data);
    if (!event.ok() || !event->is_object()) {
      error_ = "an event of the stream is not JSON: " + Printable(data);
      return;
    }
    if (event->contains("error")) return;  // without an id: the answer goes on when it is resumed
    last_id_ = parser_->last_event_id();
    if (const auto usage = event->find("usage"); usage != event->end() && usage->is_object()) {
      answer_.tokens = usage->value("completion_tokens", int64_t{0});
    }
    const auto choices = event->find("choices");
    if (choices == event->end() || !choices->is_array() || choices->empty()) return;
    const Json text = choices->front().value("text", Json());
    if (!text.is_string() || text == "") return;
    answer_.text += text.get<std::string>();
    answer_.pieces_s.push_back(owner_.Now());
  }

  const StreamClients& owner_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<net::SseParser> parser_ MR_GUARDED_BY(mutex_);
  DrillAnswer answer_ MR_GUARDED_BY(mutex_);
  std::string last_id_ MR_GUARDED_BY(mutex_), error_ MR_GUARDED_BY(mutex_),
      refusal_ MR_GUARDED_BY(mutex_);
  std::optional<Status> ended_ MR_GUARDED_BY(mutex_);
  int status_ MR_GUARDED_BY(mutex_) = 0;
  bool whole_ MR_GUARDED_BY(mutex_) = false;
};

StreamClients::StreamClients(net::HttpClient& http, StreamClientOptions options,
                             std::vector<DrillRequest> requests, const Clock& clock, Time began)
    : http_(http),
      options_(std::move(options)),
      requests_(std::move(requests)),
      clock_(clock),
      began_(began) {}

StreamClients::~StreamClients() { Abort(); }

void StreamClients::Start() {
  for (int i = 0; i < std::ssize(requests_); ++i) {
    ++active_;
    threads_.emplace_back([this, i] {
      Run(i);
      --active_;
    });
  }
}

std::vector<DrillAnswer> StreamClients::Wait() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const MutexLock lock(mutex_);
  return std::move(answers_);
}

void StreamClients::Abort() {
  aborting_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

int64_t StreamClients::answers() const {
  const MutexLock lock(mutex_);
  return std::ssize(answers_);
}

void StreamClients::Run(int client) {
  for (int round = 0; !finishing_ && !aborting_; ++round) {
    if (options_.rounds && round >= *options_.rounds) return;
    const size_t request = static_cast<size_t>(client + round) % requests_.size();
    DrillAnswer answer = Ask(client, request, round);
    const MutexLock lock(mutex_);
    answers_.push_back(std::move(answer));
  }
}

DrillAnswer StreamClients::Ask(int client, size_t request, int round) {
  DrillAnswer answer{.client = client, .request = request, .asked_s = Now()};
  net::HttpCall call{.method = "POST", .url = options_.server.Join("/v1/completions")};
  call.headers = {{"Content-Type", "application/json"}};
  call.body = BodyOf(requests_[request], fmt::format("drill-{}-{}", client, round));
  const auto reading = std::make_shared<Reading>(*this);
  Time last_progress = clock_.Now();
  while (!aborting_) {
    const size_t before = reading->progress();
    net::HttpCall next = call;
    if (const std::string id = reading->last_id(); !id.empty()) {
      next.headers.emplace_back("Last-Event-ID", id);
    } else if (reading->began()) {  // the server cannot resume it
      answer.error = reading->Trouble();
      break;
    }
    if (ReadOn(next, *reading, answer)) break;
    if (reading->progress() > before) last_progress = clock_.Now();
    if (clock_.Now() - last_progress > options_.patience) {
      answer.error = reading->Trouble();
      break;
    }
    std::this_thread::sleep_for(kRetryPause);
  }
  if (aborting_) answer.error = "the drill was interrupted";
  reading->MoveInto(answer);
  return answer;
}

bool StreamClients::ReadOn(const net::HttpCall& call, Reading& reading, DrillAnswer& answer) {
  reading.Begin();
  const net::FetchId fetch =
      http_.Fetch(call, {.on_head = [&](int status, const auto&) { reading.Head(status); },
                         .on_data = [&](std::string_view part) { reading.Data(part); },
                         .on_done = [&](Status status) { reading.Done(std::move(status)); }});
  bool counted = false;
  while (!reading.WaitAMoment()) {
    if (aborting_) http_.Cancel(fetch);
    if (!counted && reading.began()) {
      counted = true;
      ++running_;
    }
  }
  if (counted) --running_;
  if (reading.status() == kStreamOk) ++answer.connections;
  if (reading.whole()) return true;
  const int status = reading.status();
  if (status == 0 || status == kStreamOk || status == kStreamBusy) return false;
  answer.error = reading.Trouble();  // refused: it would be again
  return true;
}

}  // namespace millrace::apps
