#include "cluster/heartbeat_service.h"

namespace millrace::cluster {

// One stream: one operation at a time, and its own tag. Deletes itself.
class HeartbeatService::Call {
 public:
  explicit Call(HeartbeatService& service) : service_(service), stream_(&context_) {
    ++service_.calls_alive_;
    service_.calls_.RequestHeartbeats(&context_, &stream_, service_.queue_.get(),
                                      service_.queue_.get(), this);
  }

  void Proceed(bool ok) {
    switch (state_) {
      case State::kWaiting: return ok ? Begin() : Delete();
      case State::kReading: return ok ? Take() : End(grpc::Status::OK);
      case State::kEnding: return Delete();
    }
  }

 private:
  enum class State { kWaiting, kReading, kEnding };

  void Begin() {
    new Call(service_);  // for the next worker
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
  void Take() {
    grpc::Slice slice;
    const auto bytes = OnePiece(bytes_, slice);
    if (!bytes.ok() || bytes->size() > wire::kHeartbeatBytesMax) {
      return End({grpc::StatusCode::INVALID_ARGUMENT, "not a heartbeat"});
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
    // None waits any more once the server has shut down. Only then may the queue be: an operation
    // that begins on a queue which is shut down ends the process.
    if (--service_.calls_alive_ == 0) service_.queue_->Shutdown();
    delete this;
  }

  HeartbeatService& service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  grpc::ByteBuffer bytes_;
  State state_ = State::kWaiting;
  bool counted_ = false;
};

void HeartbeatService::Start() {
  new Call(*this);
  thread_ = std::thread([this] { Run(); });
}

void HeartbeatService::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

void HeartbeatService::Join() {
  if (thread_.joinable()) {
    thread_.join();
  } else if (queue_) {
    queue_->Shutdown();
    Run();
  }
}

}  // namespace millrace::cluster
