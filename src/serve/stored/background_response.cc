#include "serve/stored/background_response.h"

#include <fmt/format.h>

#include <utility>

#include "base/task_barrier.h"
#include "serve/answer/response.h"
#include "serve/apis/responses_writer.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kEventEnd = "\n\n";

std::shared_ptr<RetainedStream> StreamOf(const ResponseRecord& record, const Clock& clock) {
  if (!record.streams) return nullptr;
  ResumableStreams limits{.enabled = true};
  limits.stream_bytes_max = kStoredEventsBytesMax;
  return std::make_shared<RetainedStream>(record.id, limits, clock,
                                          std::make_shared<StreamsShared>());
}

int CountEvents(std::string_view events) {
  int count = 0;
  for (size_t at = 0; (at = events.find(kEventEnd, at)) != std::string_view::npos; ++count) {
    at += kEventEnd.size();
  }
  return count;
}

bool MayBeTriedAgain(int status) { return status == 429 || status == 503; }

}  // namespace

std::string_view EventsAfter(std::string_view events, uint64_t after) {
  for (; after > 0 && !events.empty(); --after) {
    const size_t end = events.find(kEventEnd);
    events.remove_prefix(end == std::string_view::npos ? events.size() : end + kEventEnd.size());
  }
  return events;
}

// One try.
class BackgroundResponse::Reply : public net::HttpReply {
 public:
  Reply(std::shared_ptr<BackgroundResponse> of, Ended ended, std::function<bool()> leaving)
      : of_(std::move(of)), ended_(std::move(ended)), leaving_(std::move(leaving)) {}

  ~Reply() override {
    if (!ended_) return;
    const bool leaving = leaving_();
    RunTask("a response in the background", [&] {
      if (!leaving) of_->Fail("The request ended without an answer.");
    });
    RunTask("a response in the background",
            [&] { Finish(leaving ? TryEnd::kLeft : TryEnd::kEnded); });
  }

  void Send(net::HttpResponse response) override {
    if (response.status == 200) return Finish(TryEnd::kEnded);
    if (!disconnected() && MayBeTriedAgain(response.status)) return Finish(TryEnd::kTryAgain);
    const Json body = Json::parse(response.body, nullptr, false);
    const Json error = body.is_object() ? body.value("error", Json::object()) : Json::object();
    of_->Fail(error.value("message", ""));
    Finish(TryEnd::kEnded);
  }

  void Start(net::HttpResponse) override {}  // the stream has begun

  bool Write(std::string part) override {
    {
      MutexLock lock(of_->mutex_);
      if (of_->left_ || !of_->record_.open) return false;
      if (part != kPing) of_->Keep(part);
    }
    if (of_->events_) of_->events_->Write(std::move(part));
    return true;
  }

  void End() override {
    const bool left = [this] {
      MutexLock lock(of_->mutex_);
      return of_->left_;
    }();
    if (of_->events_ && !left) of_->events_->End();
    Finish(left ? TryEnd::kLeft : TryEnd::kEnded);
  }

  void OnDisconnect(std::function<void()> callback) override {
    {
      MutexLock lock(of_->mutex_);
      if (of_->record_.open) {
        of_->on_disconnect_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  bool disconnected() const override {
    MutexLock lock(of_->mutex_);
    return !of_->record_.open;
  }

 private:
  void Finish(TryEnd end) {
    if (!ended_) return;
    {
      MutexLock lock(of_->mutex_);
      of_->on_disconnect_ = nullptr;
      if (end == TryEnd::kEnded) of_->record_.open = false;
    }
    std::exchange(ended_, nullptr)(end);
  }

  const std::shared_ptr<BackgroundResponse> of_;
  Ended ended_;  // null once it has been called
  const std::function<bool()> leaving_;
};

BackgroundResponse::BackgroundResponse(ResponseRecord record, const Clock& clock,
                                       std::shared_ptr<net::HttpReply> client)
    : name_(record.owner, record.id),
      stream_(StreamOf(record, clock)),
      events_(stream_ ? stream_->Produce(std::move(client)) : nullptr),
      record_(std::move(record)) {
  if (!events_) return;
  net::HttpResponse head = EventStreamHead();
  if (!record_.ignored.empty()) head.headers.emplace_back(kIgnoredHeader, record_.ignored);
  events_->Start(std::move(head));
}

BackgroundResponse::~BackgroundResponse() = default;

std::shared_ptr<net::HttpReply> BackgroundResponse::Try(Ended ended,
                                                        std::function<bool()> leaving) {
  MutexLock lock(mutex_);
  if (record_.open) record_.response["status"] = "in_progress";
  return std::make_shared<Reply>(shared_from_this(), std::move(ended), std::move(leaving));
}

void BackgroundResponse::TakeEnded(const Json& response, bool leaving) {
  MutexLock lock(mutex_);
  if (!record_.open) return;  // cancelled
  left_ = leaving && response["status"] == Json("failed");
  if (!left_) record_.response = response;
}

void BackgroundResponse::Keep(std::string_view events) {
  if (!record_.streams) return;
  record_.events += events;
  if (record_.events.size() <= kStoredEventsBytesMax) return;
  record_.streams = false;
  record_.events.clear();
}

void BackgroundResponse::Fail(const std::string& message) {
  std::string event;
  {
    MutexLock lock(mutex_);
    if (!record_.open) return;
    record_.response["status"] = "failed";
    record_.response["error"] = ResponseError(message);
    const Json data = {{"type", "response.failed"},
                       {"sequence_number", CountEvents(record_.events)},
                       {"response", record_.response}};
    event = fmt::format("event: response.failed\ndata: {}\n\n", DumpJson(data));
    Keep(event);
  }
  if (!events_) return;
  events_->Write(std::move(event));
  events_->End();
}

void BackgroundResponse::Cancel() {
  std::function<void()> abort;
  {
    MutexLock lock(mutex_);
    if (!record_.open) return;
    record_.open = false;
    record_.response["status"] = "cancelled";
    abort = std::exchange(on_disconnect_, nullptr);
  }
  if (abort) abort();
  if (events_) events_->End();
}

bool BackgroundResponse::Follow(std::shared_ptr<net::HttpReply> client, uint64_t after) {
  return stream_ && stream_->Attach(std::move(client), after) == RetainedStream::Attached::kYes;
}

bool BackgroundResponse::open() const {
  MutexLock lock(mutex_);
  return record_.open;
}

ResponseRecord BackgroundResponse::record() const {
  MutexLock lock(mutex_);
  return record_;
}

}  // namespace millrace::serve
