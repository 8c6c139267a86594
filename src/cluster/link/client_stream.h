// ClientStream: one call to a server of the cluster, as bytes, with bounded sending. Private to the
// gRPC bodies of this folder. Keeps itself alive until gRPC is done with it; any thread.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "cluster/link/link_grpc.h"
#include "cluster/link/send_queue.h"

namespace millrace::cluster {

class ClientStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public std::enable_shared_from_this<ClientStream> {
 public:
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, SendLimits limits)
      : stub_(channel), queue_(limits) {}

  // `peer`: what its certificate must allow it to be.
  void Begin(const std::string& method, const LinkSecurity& security, LinkRole peer);
  // `encode` is called under the stream's lock, in the order of sending.
  template <typename Encode>
  Status Send(Encode encode);
  // At once; what waits is lost.
  void End(const Status& reason);

 protected:
  virtual void Admitted() {}  // the server has checked token and version
  // One message; an error ends the call with it. One thread at a time.
  virtual Status Received(std::span<const uint8_t> bytes) = 0;
  virtual void Ended(const Status& reason) = 0;

 private:
  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  Status Enqueue(grpc::ByteBuffer buffer) MR_REQUIRES(mutex_);
  void EndLocked(const Status& reason) MR_REQUIRES(mutex_);
  void LetGo() MR_REQUIRES(mutex_);  // no more operations will be started

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<ClientStream> self_;
  grpc::ByteBuffer in_;
  LinkRole peer_ = LinkRole::kController;

  Mutex mutex_;
  SendQueue queue_ MR_GUARDED_BY(mutex_);
  bool open_ MR_GUARDED_BY(mutex_) = false;
  bool writing_ MR_GUARDED_BY(mutex_) = false;
  Status reason_ MR_GUARDED_BY(mutex_);  // ours, when we ended it
};

template <typename Encode>
Status ClientStream::Send(Encode encode) {
  const MutexLock lock(mutex_);
  if (!open_) return Unavailable("the stream has ended");
  MR_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, encode());
  return Enqueue(ToByteBuffer(bytes));
}

}  // namespace millrace::cluster
