#include "serve/answer/stream_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <vector>

#include "base/task_barrier.h"

namespace millrace::serve {
namespace {

std::optional<ApiError> WhyNot(RetainedStream::Attached attached, const StreamPosition& position) {
  if (attached == RetainedStream::Attached::kYes) return std::nullopt;
  if (attached == RetainedStream::Attached::kNoSuchEvent) {
    return BadField("Last-Event-ID",
                    fmt::format("The stream has ended and has no event {}.", position.after));
  }
  return ApiError{.status = 404,
                  .message =
                      "No such stream is stored for this API key; send the request again "
                      "without Last-Event-ID.",
                  .code = "stream_not_found"};
}

}  // namespace

std::optional<StreamPosition> ParseStreamPosition(std::string_view last_event_id) {
  const size_t colon = last_event_id.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  StreamPosition position{.response_id = std::string(last_event_id.substr(0, colon))};
  const std::string_view number = last_event_id.substr(colon + 1);
  const auto read = std::from_chars(number.data(), number.data() + number.size(), position.after);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return std::nullopt;
  return position;
}

StreamKeeper::StreamKeeper(const ResumableStreams& limits, const Clock& clock)
    : limits_(limits), clock_(clock), shared_(std::make_shared<StreamsShared>()) {
  thread_ = std::thread([this] { Run(); });
}

StreamKeeper::~StreamKeeper() {
  {
    MutexLock lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->wakeup.notify_all();
  thread_.join();
}

std::shared_ptr<net::HttpReply> StreamKeeper::Keep(const std::string& owner,
                                                   const std::string& response_id,
                                                   std::shared_ptr<net::HttpReply> client) {
  auto stream = std::make_shared<RetainedStream>(response_id, limits_, clock_, shared_);
  {
    MutexLock lock(mutex_);
    if (streams_.size() >= limits_.streams_max && !ForgetOldestEnded()) return client;
    streams_[{owner, response_id}] = stream;
  }
  return stream->Produce(std::move(client));
}

std::optional<ApiError> StreamKeeper::Resume(const std::string& owner,
                                             const StreamPosition& position,
                                             std::shared_ptr<net::HttpReply> client) {
  const std::shared_ptr<RetainedStream> stream = Find(owner, position);
  const auto attached = stream ? stream->Attach(std::move(client), position.after)
                               : RetainedStream::Attached::kNotKept;
  return WhyNot(attached, position);
}

std::optional<ApiError> StreamKeeper::SendHead(const std::string& owner,
                                               const StreamPosition& position,
                                               net::HttpReply& client) {
  const std::shared_ptr<RetainedStream> stream = Find(owner, position);
  net::HttpResponse head;
  const auto there =
      stream ? stream->Head(position.after, head) : RetainedStream::Attached::kNotKept;
  if (auto error = WhyNot(there, position)) return error;
  client.Start(std::move(head));
  client.End();
  return std::nullopt;
}

std::shared_ptr<RetainedStream> StreamKeeper::Find(const std::string& owner,
                                                   const StreamPosition& position) {
  MutexLock lock(mutex_);
  const auto found = streams_.find({owner, position.response_id});
  return found != streams_.end() ? found->second : nullptr;
}

void StreamKeeper::Run() {
  while (true) {
    std::optional<Time> again;
    RunTask("keeping streams", [&] { again = Sweep(); });
    MutexLock lock(shared_->mutex);
    const auto awake = [this]() MR_REQUIRES(shared_->mutex) {
      return shared_->woken || shared_->stopping;
    };
    if (again) {
      const Duration wait = std::max(*again - clock_.Now(), Duration{});
      shared_->wakeup.wait_for(lock, std::chrono::nanoseconds(wait.ns), awake);
    } else {
      shared_->wakeup.wait(lock, awake);
    }
    if (shared_->stopping) return;
    shared_->woken = false;
  }
}

std::optional<Time> StreamKeeper::Sweep() {
  Streams streams;
  {
    MutexLock lock(mutex_);
    streams = streams_;
  }
  const Time now = clock_.Now();
  std::optional<Time> again;
  for (const auto& [name, stream] : streams) {
    const RetainedStream::Inspection found = stream->Inspect(now);
    if (found.forget) {
      MutexLock lock(mutex_);
      const auto kept = streams_.find(name);
      if (kept != streams_.end() && kept->second == stream) streams_.erase(kept);
    } else if (found.again) {
      again = std::min(again.value_or(*found.again), *found.again);
    }
    if (found.cancel) found.cancel();
  }
  streams.clear();  // destroys the dropped streams, which releases their bytes
  MutexLock lock(mutex_);
  while (shared_->bytes > limits_.bytes_max / 4 * 3 && ForgetOldestEnded()) {
  }
  return again;
}

bool StreamKeeper::ForgetOldestEnded() {
  auto oldest = streams_.end();
  Time oldest_end;
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    const std::optional<Time> ended = it->second->ended();
    if (!ended || (oldest != streams_.end() && *ended >= oldest_end)) continue;
    oldest = it;
    oldest_end = *ended;
  }
  if (oldest == streams_.end()) return false;
  streams_.erase(oldest);
  return true;
}

}  // namespace millrace::serve
