#include "net/data/link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::net {
namespace {

constexpr size_t kReadBudgetBytes = 1 << 20;     // per event of one connection
constexpr size_t kWriteBudgetBytes = 1 << 20;    // on the loop's thread
constexpr size_t kCallerBudgetBytes = 64 << 10;  // on a caller's thread

}  // namespace

void Link::Adopt(UniqueFd socket, StreamSide side, bool connecting) {
  TuneDataSocket(socket.get(), host_.options.limits.unacked_within);
  const TlsContext& tls = side == StreamSide::kAccepting ? host_.server_tls : host_.client_tls;
  if (tls != nullptr) {
    auto made = MakeTlsStream(std::move(socket), tls, side);
    if (!made.ok()) return Close(made.status());
    stream_ = std::move(*made);
  } else {
    stream_ = MakePlainStream(std::move(socket));
  }
  one_thread_ = stream_->one_thread();
  connecting_ = connecting;
  shaking_ = tls != nullptr;
  host_.loop.Watch(stream_->fd(), connecting ? EPOLLOUT : EPOLLIN, this);
  if (!connecting) Connected();
}

void Link::Connected() {
  connecting_ = false;
  if (shaking_) return Shake();
  binding_ = stream_->Binding();
  {
    MutexLock lock(write_mutex_);
    write_open_ = true;
    SetInterest();
  }
  OnConnected();
}

void Link::Shake() {
  const IoResult io = stream_->Handshake();
  if (!io.ended.empty()) return Close({StatusCode::kUnauthenticated, io.ended});
  if (io.blocked) {
    host_.loop.Change(stream_->fd(), EPOLLIN, this);
    return;
  }
  shaking_ = false;
  Connected();
}

void Link::SendHello(std::vector<std::byte> message) {
  {
    MutexLock lock(write_mutex_);
    if (!write_open_) return;
    writer_.PushRaw(std::move(message));
  }
  Write(kWriteBudgetBytes);
}

void Link::SetReady() {
  if (hello_timer_) host_.loop.Cancel(*hello_timer_);
  hello_timer_.reset();
  ready_ = true;
  FlushLater();
}

void Link::EndWithin(Duration limit, const char* what) {
  if (hello_timer_) host_.loop.Cancel(*hello_timer_);
  hello_timer_ = host_.loop.At(host_.loop.Now() + limit, [this, what] {
    hello_timer_.reset();
    Close({StatusCode::kDeadlineExceeded, what});
  });
}

void Link::Close(const Status& reason) {
  if (closed_) return;
  const auto self = shared_from_this();
  {
    MutexLock lock(write_mutex_);
    closed_ = true;
    write_open_ = false;
    if (stream_ != nullptr) host_.loop.Unwatch(stream_->fd());
    stream_.reset();
  }
  if (hello_timer_) host_.loop.Cancel(*hello_timer_);
  hello_timer_.reset();
  OnClosed(reason);
  host_.loop.Post([self] {});  // pending events may still refer to it
}

void Link::OnEvents(uint32_t events) {
  if (closed_) return;
  if (connecting_) {
    const std::string error = ConnectError(stream_->fd());
    if (!error.empty()) return Close(Unavailable("cannot connect: " + error));
    return Connected();
  }
  if (shaking_) return Shake();
  if ((events & EPOLLOUT) != 0) {
    {
      MutexLock lock(write_mutex_);
      blocked_ = false;
      SetInterest();
    }
    Write(kWriteBudgetBytes);
    if (closed_) return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    if (!ready_) {
      ReadHello();
    } else {
      ReadFrames();
    }
  }
}

void Link::SetInterest() {
  host_.loop.Change(stream_->fd(), blocked_ ? EPOLLIN | EPOLLOUT : EPOLLIN, this);
}

// Reading byte by byte would be simplest, but bytes after the hello belong to the frames.
void Link::ReadHello() {
  while (!closed_ && !ready_) {
    const iovec place{staging_.data(), staging_.size()};
    const IoResult io = stream_->Read({&place, 1});
    if (io.blocked) return;
    if (!io.ended.empty()) return Close(Unavailable(io.ended));
    hello_.insert(hello_.end(), staging_.begin(), staging_.begin() + io.bytes);
    while (!closed_ && !ready_ && !hello_.empty()) {
      const auto length = HelloLength(hello_);
      if (!length.ok()) return Close(length.status());
      if (!length->has_value()) break;
      const std::vector<std::byte> message(hello_.begin(), hello_.begin() + **length);
      hello_.erase(hello_.begin(), hello_.begin() + **length);
      const Status status = OnHello(message);
      if (!status.ok()) return Close(status);
    }
  }
  if (closed_ || !ready_) return;
  const std::vector<std::byte> rest = std::exchange(hello_, {});
  const Status status = decoder_.Feed(rest);
  if (!status.ok()) return Close(status);
  ReadFrames();
}

Status Link::TakeRead(size_t bytes, size_t place_bytes) {
  const size_t direct = std::min(bytes, place_bytes);
  MR_RETURN_IF_ERROR(decoder_.Advance(direct));
  return decoder_.Feed(std::span(staging_).first(bytes - direct));
}

void Link::ReadFrames() {
  size_t budget = kReadBudgetBytes;
  while (!closed_) {
    const std::span<std::byte> place = decoder_.Place();
    const iovec places[] = {{place.data(), place.size()}, {staging_.data(), staging_.size()}};
    const IoResult io = stream_->Read(places);
    if (io.blocked) {
      stream_->Expect(decoder_.Awaited());
      break;
    }
    if (!io.ended.empty()) return Close(Unavailable(io.ended));
    if (const Status status = TakeRead(io.bytes, place.size()); !status.ok()) {
      host_.counters.Add(decoder_.corrupted() ? &DataPlaneStats::checksum_errors
                                              : &DataPlaneStats::protocol_errors);
      return Close(status);
    }
    if (io.bytes < place.size() + staging_.size() && !one_thread_) {  // none is left
      stream_->Expect(decoder_.Awaited());
      break;
    }
    if (budget <= io.bytes) {  // the other connections' turn; a TLS session may hold bytes that
                               // epoll cannot see
      host_.loop.Post([self = shared_from_this(), this] {
        if (!closed_) ReadFrames();
      });
      break;
    }
    budget -= io.bytes;
  }
  host_.counters.Add(&DataPlaneStats::frames_received, decoder_.frames() - frames_counted_);
  frames_counted_ = decoder_.frames();
}

void Link::Flush() {
  if (host_.loop.InThread()) return Write(kWriteBudgetBytes);
  if (one_thread_) return FlushLater();
  Write(kCallerBudgetBytes);
}

void Link::FlushLater() {
  if (flush_posted_.exchange(true)) return;
  host_.loop.Post([self = shared_from_this(), this] {
    flush_posted_ = false;
    Write(kWriteBudgetBytes);
  });
}

// A thread that finds the lock taken leaves the work to its holder, which checks again after
// unlocking.
void Link::Write(size_t budget_bytes) {
  flush_wanted_ = true;
  while (flush_wanted_) {
    if (!write_mutex_.try_lock()) return;
    MutexLock lock(write_mutex_, std::adopt_lock);
    if (!write_open_ || blocked_) return;
    flush_wanted_ = false;
    const uint64_t before = writer_.frames();
    const FrameWriter::End end = writer_.Write(
        *stream_, [this](OutFrame& out) { return ready_ && NextFrame(out); }, budget_bytes);
    host_.counters.Add(&DataPlaneStats::frames_sent, writer_.frames() - before);
    if (end == FrameWriter::End::kBlocked) {
      blocked_ = true;
      SetInterest();
    } else if (end == FrameWriter::End::kFailed) {
      write_open_ = false;
      host_.loop.Post(
          [self = shared_from_this(), this, why = writer_.failure()] { Close(Unavailable(why)); });
    }
    const auto done = writer_.TakeDone();
    lock.unlock();  // before sent frames are released
    if (end == FrameWriter::End::kBudget) return FlushLater();
    if (end != FrameWriter::End::kDry) return;
  }
}

}  // namespace millrace::net
