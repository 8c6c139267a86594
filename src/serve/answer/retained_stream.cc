#include "serve/answer/retained_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/answer/response.h"

namespace millrace::serve {

void StreamsShared::Wake() {
  {
    MutexLock lock(mutex);
    woken = true;
  }
  wakeup.notify_all();
}

class RetainedStream::Producer : public net::HttpReply {
 public:
  explicit Producer(std::shared_ptr<RetainedStream> stream) : stream_(std::move(stream)) {}
  ~Producer() override { stream_->Abandon(); }

  void Send(net::HttpResponse response) override { stream_->Send(std::move(response)); }
  void Start(net::HttpResponse head) override { stream_->Start(std::move(head)); }
  bool Write(std::string part) override { return stream_->Write(part); }
  void End() override { stream_->End(); }
  bool disconnected() const override { return stream_->disconnected(); }
  void OnDisconnect(std::function<void()> callback) override {
    {
      MutexLock lock(stream_->mutex_);
      stream_->on_disconnect_ = std::move(callback);
    }
    stream_->shared_->Wake();  // the callback may already be due
  }

 private:
  const std::shared_ptr<RetainedStream> stream_;
};

RetainedStream::RetainedStream(std::string response_id, const ResumableStreams& limits,
                               const Clock& clock, std::shared_ptr<StreamsShared> shared)
    : response_id_(std::move(response_id)),
      limits_(limits),
      clock_(clock),
      shared_(std::move(shared)) {}

RetainedStream::~RetainedStream() { StopKeeping(); }

std::shared_ptr<net::HttpReply> RetainedStream::Produce(std::shared_ptr<net::HttpReply> client) {
  MutexLock lock(mutex_);
  client_ = std::move(client);
  if (client_) {
    WatchClient();
  } else {
    without_client_ = clock_.Now();
  }
  return std::make_shared<Producer>(shared_from_this());
}

RetainedStream::Attached RetainedStream::Attach(std::shared_ptr<net::HttpReply> client,
                                                uint64_t after) {
  std::shared_ptr<net::HttpReply> before;  // destroyed, which disconnects it, without the lock
  MutexLock lock(mutex_);
  if (const Attached can = CanAttach(after); can != Attached::kYes) return can;
  before = std::exchange(client_, std::move(client));
  without_client_.reset();
  client_->Start(*head_);
  seen_ = after;
  const size_t events = std::min<size_t>(after, ends_.size());
  const size_t seen = events == 0 ? 0 : ends_[events - 1];
  const bool reads = seen == log_.size() || client_->Write(log_.substr(seen));
  if (ended_) {
    client_->End();
    client_.reset();
  } else if (!reads) {
    Detach();
  } else {
    WatchClient();
  }
  return Attached::kYes;
}

RetainedStream::Attached RetainedStream::Head(uint64_t after, net::HttpResponse& head) const {
  MutexLock lock(mutex_);
  const Attached can = CanAttach(after);
  if (can == Attached::kYes) head = *head_;
  return can;
}

RetainedStream::Attached RetainedStream::CanAttach(uint64_t after) const {
  if (!kept_ || !head_ || (answered_ && !ended_)) return Attached::kNotKept;
  const bool whole = ended_ && !failed_;
  return after > ends_.size() && whole ? Attached::kNoSuchEvent : Attached::kYes;
}

RetainedStream::Inspection RetainedStream::Inspect(Time now) {
  MutexLock lock(mutex_);
  Inspection found;
  DetachIfGone();
  if (ended_) {
    found.again = *ended_ + limits_.retain;
    found.forget = !kept_ || *found.again <= now;
  } else if (answered_) {
    found.forget = true;
  } else if (!client_) {
    // A client that did not get the head does not know the stream's name.
    const bool resumable = kept_ && head_;
    found.again = *without_client_ + (resumable ? limits_.grace : Duration{});
    if (*found.again <= now && on_disconnect_) {
      found.forget = true;
      kept_ = false;
      found.cancel = std::exchange(on_disconnect_, nullptr);
    }
  }
  return found;
}

std::optional<Time> RetainedStream::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void RetainedStream::Send(net::HttpResponse response) {
  MutexLock lock(mutex_);
  answered_ = true;
  on_disconnect_ = nullptr;
  if (client_) std::exchange(client_, nullptr)->Send(std::move(response));
  shared_->Wake();
}

void RetainedStream::Start(net::HttpResponse head) {
  MutexLock lock(mutex_);
  const auto visible = [](char c) { return c > ' ' && c < '\x7f'; };  // clients can choose the id
  if (std::ranges::all_of(response_id_, visible)) {
    head.headers.emplace_back("x-stream-id", response_id_);
  }
  if (client_) client_->Start(head);
  head_ = std::move(head);
}

bool RetainedStream::Write(const std::string& events) {
  MutexLock lock(mutex_);
  DetachIfGone();
  if (events == kPing) {  // for the client of this moment
    if (client_ && !client_->Write(events)) Detach();
    return client_ != nullptr || kept_;
  }
  const uint64_t before = numbered_;
  std::string numbered = Number(events);
  Keep(numbered);
  if (client_) {
    std::string unseen = Unseen(std::move(numbered), before);
    if (!unseen.empty() && !client_->Write(std::move(unseen))) Detach();
  }
  return client_ != nullptr || kept_;
}

std::string RetainedStream::Unseen(std::string numbered, uint64_t before) const {
  // An error alone has no number.
  if (seen_ <= before || numbered_ == before) return numbered;
  if (seen_ >= numbered_) return "";
  if (kept_) numbered.erase(0, ends_[seen_ - 1] - (log_.size() - numbered.size()));
  return numbered;
}

void RetainedStream::End() {
  MutexLock lock(mutex_);
  answered_ = true;
  ended_ = clock_.Now();
  on_disconnect_ = nullptr;
  if (client_) std::exchange(client_, nullptr)->End();
  shared_->Wake();
}

void RetainedStream::Abandon() {
  std::shared_ptr<net::HttpReply> client;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    if (answered_) return;
    answered_ = true;
    on_disconnect_ = nullptr;
    client = std::move(client_);
    StopKeeping();
  }
  shared_->Wake();
}

bool RetainedStream::disconnected() const {
  MutexLock lock(mutex_);
  return !kept_ && (!client_ || client_->disconnected());
}

// Puts "id: RESPONSE:N" before each event; an event ends with an empty line. An error gets no
// number: it is not part of the answer, whose next event may still come from the next run of the
// server.
std::string RetainedStream::Number(const std::string& events) {
  std::string numbered;
  for (size_t begin = 0; begin < events.size();) {
    const size_t blank = events.find("\n\n", begin);
    const size_t end = blank == std::string::npos ? events.size() : blank + 2;
    const bool counts = events.compare(begin, kErrorEventBegin.size(), kErrorEventBegin) != 0;
    failed_ = failed_ || !counts;
    if (counts) numbered += fmt::format("id: {}:{}\n", response_id_, ++numbered_);
    numbered.append(events, begin, end - begin);
    if (counts && kept_) ends_.push_back(log_.size() + numbered.size());
    begin = end;
  }
  return numbered;
}

void RetainedStream::Keep(const std::string& numbered) {
  if (!kept_) return;
  log_ += numbered;
  const size_t all = shared_->bytes.fetch_add(numbered.size()) + numbered.size();
  if (log_.size() > limits_.stream_bytes_max || all > limits_.bytes_max) StopKeeping();
}

void RetainedStream::StopKeeping() {
  kept_ = false;
  shared_->bytes.fetch_sub(log_.size());
  log_ = {};
  ends_ = {};
}

// The callback may run on any thread, even inside a call of the client, so it must not lock the
// stream's mutex.
void RetainedStream::WatchClient() {
  client_->OnDisconnect([weak = weak_from_this(), reading = ++reading_, shared = shared_] {
    if (auto stream = weak.lock()) stream->gone_ = reading;
    shared->Wake();
  });
}

void RetainedStream::Detach() {
  client_.reset();
  without_client_ = clock_.Now();
  shared_->Wake();
}

void RetainedStream::DetachIfGone() {
  if (client_ && gone_ == reading_) Detach();
}

}  // namespace millrace::serve
