#include "cluster/link/echo_service.h"

#include <fmt/format.h>

#include <vector>

#include "cluster/link/server_stream.h"
#include "wire/codec.h"

namespace millrace::cluster {
namespace {

// As much as one measurement asks for at once, and some more: a worker that does not read is
// dropped.
constexpr SendLimits kAnswersMax = {.messages = 64, .bytes = size_t{16} << 20};

}  // namespace

class EchoService::Call : public ServerStream {
 public:
  Call(EchoService& service, grpc::CallbackServerContext* context)
      : ServerStream(context, kAnswersMax), service_(service), began_(SteadyClock().Now()) {}

  void CheckTime(Time now) {
    if (now - began_ <= kCallLimit) return;
    Drop(Status(StatusCode::kDeadlineExceeded, "the measurement takes too long"));
  }

 private:
  Status Received(std::span<const uint8_t> bytes) override {
    const auto echo = wire::ThreadDecoder().DecodeEcho(bytes);
    Status wrong = echo.status();
    if (echo.ok() && echo->envelope.sequence != ++received_) {
      wrong = InvalidArgument(fmt::format("echo {} of the call has sequence number {}", received_,
                                          echo->envelope.sequence));
    }
    if (!wrong.ok()) {
      service_.gate_.Refuse(peer(), wrong.message());
      return wrong;
    }
    return Send([&] {
      return wire::ThreadEncoder().Encode(echo->envelope,
                                          Echo{.bytes = echo->message.answer_bytes});
    });
  }
  void Ended(const Status&) override {
    service_.Ended(std::static_pointer_cast<Call>(shared_from_this()));
  }

  EchoService& service_;
  const Time began_;
  uint64_t received_ = 0;
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EchoService::Begin(
    grpc::CallbackServerContext* context) {
  grpc::Status admission = gate_.Admit(*context);
  const auto call = std::make_shared<Call>(*this, context);
  {
    const MutexLock lock(mutex_);
    if (admission.ok() && calls_.size() >= kCallsMax) {
      admission = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many measurements at once"};
      gate_.Refuse(context->peer(), "too many measurements at once");
    }
    calls_.insert(call);
  }
  call->Begin(admission);
  return call.get();
}

void EchoService::Tick(Time now) {
  std::vector<std::shared_ptr<Call>> calls;
  {
    const MutexLock lock(mutex_);
    calls.assign(calls_.begin(), calls_.end());
  }
  for (const auto& call : calls) call->CheckTime(now);
}

void EchoService::Ended(const std::shared_ptr<Call>& call) {
  const MutexLock lock(mutex_);
  calls_.erase(call);
  changed_.notify_all();
}

void EchoService::Join() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return calls_.empty(); });
}

}  // namespace millrace::cluster
