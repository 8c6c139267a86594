#include "net/http/reply_queue.h"

#include <strings.h>

#include <utility>

#include "base/task_barrier.h"

namespace millrace::net {
namespace {

// Some clients read at most 16 digits of a chunk's size.
constexpr int kChunkZerosMax = 8;

}  // namespace

ReplyQueue::ReplyQueue(const Options& options, std::function<void()> wake)
    : options_(options), wake_(std::move(wake)), keep_alive_(options.keep_alive) {}

bool ReplyQueue::Accepts(State wanted) const {
  return wake_ != nullptr && !gone_.load(std::memory_order_relaxed) && state_ == wanted;
}

void ReplyQueue::Wake() {
  if (wake_pending_) return;
  wake_pending_ = true;
  wake_();
}

void ReplyQueue::Finish() {
  state_ = State::kFinished;
  Wake();
}

std::string ReplyQueue::Head(const HttpResponse& response, BodyFraming framing) {
  const auto connection = FindHeader(response.headers, "Connection");
  const bool closes =
      connection && connection->size() == 5 && strncasecmp(connection->data(), "close", 5) == 0;
  if (closes || framing == BodyFraming::kUntilClose ||
      options_.draining->load(std::memory_order_relaxed)) {
    keep_alive_ = false;
  }
  return FormatResponseHead(response.status, response.headers, framing, response.body.size(),
                            keep_alive_);
}

void ReplyQueue::Send(HttpResponse response) {
  std::function<void()> dropped;  // destroyed after the lock is released: it may own anything
  MutexLock lock(mutex_);
  if (!Accepts(State::kWaiting)) return;
  queued_ = Head(response, BodyFraming::kContentLength);
  const bool bodiless = response.status == 204 || response.status == 304;
  if (!options_.head_request && !bodiless) queued_ += response.body;
  dropped = std::exchange(on_disconnect_, nullptr);
  Finish();
}

void ReplyQueue::Start(const HttpResponse& head) {
  MutexLock lock(mutex_);
  if (!Accepts(State::kWaiting)) return;
  queued_ = Head(head, options_.http_1_0 ? BodyFraming::kUntilClose : BodyFraming::kChunked);
  state_ = State::kStreaming;
  Wake();
}

bool ReplyQueue::Write(std::string_view part) {
  MutexLock lock(mutex_);
  if (!Accepts(State::kStreaming)) return false;
  if (part.empty() || options_.head_request) return true;
  if (queued_.size() + in_flight_bytes_ > options_.unread_bytes_max) {
    cut_ = true;
    gone_.store(true, std::memory_order_release);
    queued_.clear();
    wake_pending_ = false;  // a wake in progress may have checked already
    Wake();
    return false;
  }
  if (options_.http_1_0) {
    queued_ += part;
  } else {
    AppendChunk(part, &queued_);
    chunk_zeros_ = 0;
  }
  Wake();
  return true;
}

void ReplyQueue::Probe() {
  MutexLock lock(mutex_);
  if (wake_ == nullptr || gone_.load(std::memory_order_relaxed) || options_.http_1_0) return;
  if (state_ == State::kWaiting) {
    queued_ = kContinue;
  } else if (state_ == State::kStreaming && !options_.head_request && queued_.empty() &&
             chunk_zeros_ < kChunkZerosMax) {
    queued_ = "0";
    ++chunk_zeros_;
  } else {
    return;
  }
  Wake();
}

void ReplyQueue::End() {
  std::function<void()> dropped;
  MutexLock lock(mutex_);
  if (!Accepts(State::kStreaming)) return;
  if (!options_.http_1_0 && !options_.head_request) queued_ += kLastChunk;
  dropped = std::exchange(on_disconnect_, nullptr);
  Finish();
}

void ReplyQueue::Abandon() {
  {
    MutexLock lock(mutex_);
    if (Accepts(State::kStreaming)) {
      broken_ = true;
      keep_alive_ = false;
      Finish();
      return;
    }
  }
  Send(ErrorResponse(500, "the server dropped this request without a response"));
}

void ReplyQueue::OnDisconnect(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kFinished) return;
    if (!gone_.load(std::memory_order_relaxed) || (cut_ && wake_ != nullptr)) {
      on_disconnect_ = std::move(callback);  // after a cut the I/O thread is about to call it
      return;
    }
  }
  callback();
}

ReplyQueue::Output ReplyQueue::Take() {
  MutexLock lock(mutex_);
  wake_pending_ = false;
  Output output;
  output.bytes.swap(queued_);
  in_flight_bytes_ = output.bytes.size();
  output.finished = state_ == State::kFinished;
  output.keep_alive = keep_alive_;
  output.broken = broken_;
  return output;
}

bool ReplyQueue::cut() const {
  MutexLock lock(mutex_);
  return cut_;
}

void ReplyQueue::ClientGone() {
  std::function<void()> callback;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kFinished) return;
    gone_.store(true, std::memory_order_release);
    callback = std::exchange(on_disconnect_, nullptr);
    queued_.clear();
  }
  if (callback) callback();
}

void ReplyQueue::Detach() {
  ClientGone();
  MutexLock lock(mutex_);
  wake_ = nullptr;
}

namespace {

class ReplyHandle final : public HttpReply {
 public:
  explicit ReplyHandle(std::shared_ptr<ReplyQueue> queue) : queue_(std::move(queue)) {}
  ~ReplyHandle() override {
    RunTask("a dropped request", [this] { queue_->Abandon(); });
  }

  void Send(HttpResponse response) override { queue_->Send(std::move(response)); }
  void Start(HttpResponse head) override { queue_->Start({head.status, head.headers, ""}); }
  bool Write(std::string part) override { return queue_->Write(part); }
  void End() override { queue_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    queue_->OnDisconnect(std::move(callback));
  }
  bool disconnected() const override { return queue_->disconnected(); }

 private:
  const std::shared_ptr<ReplyQueue> queue_;
};

}  // namespace

std::shared_ptr<HttpReply> MakeReply(std::shared_ptr<ReplyQueue> queue) {
  return std::make_shared<ReplyHandle>(std::move(queue));
}

}  // namespace millrace::net
