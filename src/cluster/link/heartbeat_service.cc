#include "cluster/link/heartbeat_service.h"

namespace millrace::cluster {

// One heartbeat stream: runs one operation at a time, with itself as the tag. Deletes itself.
class HeartbeatService::Call {
 public:
  explicit Call(HeartbeatService& service) : service_(service), stream_(&context_) {
    ++service_.held_;
    service_.calls_.RequestHeartbeats(&context_, &stream_, service_.queue_.get(),
                                      service_.queue_.get(), this);
  }

  void Proceed(bool ok) {
    switch (state_) {
      case State::kWaiting: return ok ? Begin() : Delete();
      case State::kReading: return ok ? TakeHeartbeat() : End(grpc::Status::OK);
      case State::kEnding: return Delete();
    }
  }

 private:
  enum class State { kWaiting, kReading, kEnding };

  void Begin() {
    service_.ExpectAnother();
    counted_ = true;
    ++service_.streams_;
    const grpc::Status admission = service_.gate_.Admit(context_);
    if (!admission.ok()) return End(admission);
    if (service_.streams_ > service_.streams_max_) {
      service_.gate_.Refuse(context_.peer(), "too many heartbeat streams");
      return End({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many heartbeat streams"});
    }
    state_ = State::kReading;
    stream_.Read(&bytes_, this);
  }
  void TakeHeartbeat() {
    grpc::Slice slice;
    const auto bytes = OnePiece(bytes_, slice);
    if (!bytes.ok() || bytes->size() > wire::kHeartbeatBytesMax) {
      return End({grpc::StatusCode::INVALID_ARGUMENT, "malformed heartbeat"});
    }
    const auto beat = service_.decoder_.DecodeHeartbeat(*bytes);
    if (!beat.ok()) return End(ToGrpc(beat.status()));
    service_.on_beat_(beat->message);
    stream_.Read(&bytes_, this);
  }
  void End(const grpc::Status& status) {
    state_ = State::kEnding;
    stream_.Finish(status, this);
  }
  void Delete() {
    if (counted_) --service_.streams_;
    HeartbeatService& service = service_;
    delete this;
    service.DropReference();
  }

  HeartbeatService& service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  grpc::ByteBuffer bytes_;
  State state_ = State::kWaiting;
  bool counted_ = false;
};

// gRPC drops a request that is made during the server's shutdown: its call would never end.
void HeartbeatService::ExpectAnother() {
  const MutexLock lock(expecting_);
  if (!stopping_) new Call(*this);
}

// gRPC aborts the process if an operation starts on a queue that is shut down. So the last user of
// the queue shuts it down.
void HeartbeatService::DropReference() {
  if (--held_ == 0) queue_->Shutdown();
}

void HeartbeatService::Start() {
  ExpectAnother();
  thread_ = std::thread([this] { Run(); });
}

void HeartbeatService::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

void HeartbeatService::StopExpecting() {
  const MutexLock lock(expecting_);
  stopping_ = true;
}

void HeartbeatService::Join() {
  if (!queue_) return;
  DropReference();
  thread_.joinable() ? thread_.join() : Run();
}

}  // namespace millrace::cluster
