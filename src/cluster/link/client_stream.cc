#include "cluster/link/client_stream.h"

#include <utility>

namespace millrace::cluster {

void ClientStream::Begin(const std::string& method, const LinkSecurity& security, LinkRole peer) {
  peer_ = peer;
  self_ = shared_from_this();
  SignCall(context_, security);
  const MutexLock lock(mutex_);
  open_ = true;
  stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
  AddHold();  // for Send, which comes from elsewhere
  StartRead(&in_);
  StartCall();
}

Status ClientStream::Enqueue(grpc::ByteBuffer buffer) {
  if (!queue_.Push(std::move(buffer))) {
    const Status slow = ResourceExhausted("the peer does not read: the stream is ended");
    EndLocked(slow);
    return slow;
  }
  if (!std::exchange(writing_, true)) StartWrite(queue_.front());
  return OkStatus();
}

void ClientStream::LetGo() {
  if (std::exchange(open_, false)) RemoveHold();
}

void ClientStream::EndLocked(const Status& reason) {
  if (!open_) return;
  reason_ = reason;
  context_.TryCancel();
  LetGo();
}

void ClientStream::End(const Status& reason) {
  const MutexLock lock(mutex_);
  EndLocked(reason);
}

void ClientStream::OnReadInitialMetadataDone(bool ok) {
  // A call that is refused has no such entry.
  if (!ok || context_.GetServerInitialMetadata().count(kProtocolKey) != 1) return;
  if (const Status role = CheckPeerRole(context_.auth_context().get(), peer_); !role.ok()) {
    return End(Status(role.code(), context_.peer() + ": " + role.message()));
  }
  Admitted();
}

void ClientStream::OnReadDone(bool ok) {
  Status result;
  if (ok) {
    grpc::Slice slice;
    const auto bytes = OnePiece(in_, slice);
    result = bytes.ok() ? Received(*bytes) : bytes.status();
  }
  const MutexLock lock(mutex_);
  if (!result.ok()) EndLocked(result);
  if (!ok) return LetGo();  // the status that follows says why
  if (open_) StartRead(&in_);
}

void ClientStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  queue_.Pop();
  if (!ok || !open_) return LetGo();
  if (queue_.empty()) return;
  writing_ = true;
  StartWrite(queue_.front());
}

void ClientStream::OnDone(const grpc::Status& status) {
  Status reason;
  {
    const MutexLock lock(mutex_);
    open_ = false;
    reason = reason_.ok() ? FromGrpc(status) : reason_;
  }
  if (reason.ok()) reason = Unavailable("the peer ended the stream");
  Ended(reason);
  const auto self = std::move(self_);  // the last of us, perhaps
}

}  // namespace millrace::cluster
