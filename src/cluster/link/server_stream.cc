#include "cluster/link/server_stream.h"

#include <utility>

#include "core/worker_messages.h"

namespace millrace::cluster {
namespace {

const SteadyClock kClock;

}  // namespace

ServerStream::ServerStream(grpc::CallbackServerContext* context, SendLimits limits)
    : context_(context), peer_(context->peer()), queue_(limits) {}

void ServerStream::Begin(const grpc::Status& admission) {
  self_ = shared_from_this();
  const MutexLock lock(mutex_);
  if (!admission.ok()) {
    FinishOnce(FromGrpc(admission));
    return;
  }
  context_->AddInitialMetadata(kProtocolKey, ToText(ProtocolRange()));
  StartSendInitialMetadata();
  StartRead(&in_);
}

Status ServerStream::Enqueue(grpc::ByteBuffer buffer) {
  if (!queue_.Push(std::move(buffer))) {
    context_->TryCancel();
    FinishOnce(ResourceExhausted("the peer reads too slowly: too many messages wait for it"));
    return ResourceExhausted("the send queue is full");
  }
  if (!writing_) StartNext();
  return OkStatus();
}

void ServerStream::StartNext() {
  writing_ = true;
  since_ = kClock.Now();
  StartWrite(queue_.front());
}

void ServerStream::FinishOnce(const Status& reason) {
  if (std::exchange(finished_, true)) return;
  reason_ = reason;
  Finish(ToGrpc(reason));
}

void ServerStream::End(const Status& reason) {
  const MutexLock lock(mutex_);
  if (finished_ || ending_) return;
  if (!writing_) return FinishOnce(reason);
  ending_ = reason;
  since_ = kClock.Now();
}

void ServerStream::Drop(const Status& reason) {
  const MutexLock lock(mutex_);
  if (finished_) return;
  context_->TryCancel();
  FinishOnce(reason);
}

void ServerStream::Tick(Time now, Duration stall_limit, Duration close_limit) {
  {
    const MutexLock lock(mutex_);
    if (finished_ || !writing_) return;
    if (now - since_ <= (ending_ ? close_limit : stall_limit)) return;
    context_->TryCancel();
    FinishOnce(ending_ ? *ending_ : ResourceExhausted("the peer has not read for too long"));
  }
  StoppedReading();
}

void ServerStream::OnReadDone(bool ok) {
  Status result = Unavailable("the peer ended the session");
  if (ok) {
    grpc::Slice slice;
    const auto bytes = OnePiece(in_, slice);
    result = bytes.ok() ? Received(*bytes) : bytes.status();
  }
  const MutexLock lock(mutex_);
  if (!result.ok()) return FinishOnce(result);
  if (!finished_) StartRead(&in_);
}

void ServerStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  queue_.Pop();
  if (!ok) return FinishOnce(Unavailable("the connection was lost"));
  if (finished_) return;
  if (!queue_.empty()) return StartNext();
  if (ending_) FinishOnce(*ending_);
}

void ServerStream::OnDone() {
  Status reason;
  {
    const MutexLock lock(mutex_);
    reason = reason_;
  }
  Ended(reason);
  const auto self = std::move(self_);  // may be the last reference
}

}  // namespace millrace::cluster
