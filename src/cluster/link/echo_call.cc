#include "cluster/link/echo_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/check.h"
#include "base/mutex.h"
#include "cluster/link/client_stream.h"
#include "wire/codec.h"

namespace millrace::cluster {
namespace {

constexpr char kEchoMethod[] = "/millrace.proto.Control/Echo";
constexpr SendLimits kEchoesMax = {.messages = 64, .bytes = size_t{16} << 20};
static_assert(EchoCall::kBytesMax / wire::kEchoBytesMax < kEchoesMax.messages);
static_assert(2 * EchoCall::kBytesMax <= kEchoesMax.bytes);

Status TooLate() {
  return {StatusCode::kDeadlineExceeded, "the controller does not answer in time"};
}

}  // namespace

class EchoCall::Stream : public ClientStream {
 public:
  Stream(const std::shared_ptr<grpc::Channel>& channel, Incarnation incarnation)
      : ClientStream(channel, kEchoesMax), incarnation_(incarnation) {}

  // On an error the call has ended, and the error says why.
  Status SendOne(const Echo& echo, Duration limit) {
    const Status sent = Send([&] {
      return wire::ThreadEncoder().Encode({Term(), incarnation_, ++sent_}, echo);
    });
    if (sent.ok()) return sent;
    MutexLock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(limit.ns),
                      [this]() MR_REQUIRES(mutex_) { return ended_.has_value(); });
    return ended_.value_or(sent);
  }
  // Waits until everything sent has been answered. Returns the bytes in the answers since the call
  // began.
  Result<uint64_t> WaitForAnswers(Duration limit) {
    MutexLock lock(mutex_);
    const bool over =
        changed_.wait_for(lock, std::chrono::nanoseconds(limit.ns),
                          [this]() MR_REQUIRES(mutex_) { return ended_ || answers_ == sent_; });
    if (ended_) return *ended_;
    if (over) return bytes_;
    return TooLate();
  }

 private:
  Status Received(std::span<const uint8_t> bytes) override {
    MR_ASSIGN_OR_RETURN(const auto answer, wire::ThreadDecoder().DecodeEcho(bytes));
    const MutexLock lock(mutex_);
    if (answer.envelope.sequence != ++answers_) {
      return DataLoss(
          fmt::format("answer {} has sequence number {}", answers_, answer.envelope.sequence));
    }
    bytes_ += answer.message.bytes;
    changed_.notify_all();
    return OkStatus();
  }
  void Ended(const Status& reason) override {
    const MutexLock lock(mutex_);
    ended_ = reason;
    changed_.notify_all();
  }

  const Incarnation incarnation_;
  uint64_t sent_ = 0;  // of the measuring thread

  Mutex mutex_;
  CondVar changed_;
  uint64_t answers_ MR_GUARDED_BY(mutex_) = 0, bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<Status> ended_ MR_GUARDED_BY(mutex_);
};

EchoCall::EchoCall(const std::shared_ptr<grpc::Channel>& channel, const LinkSecurity& security,
                   Incarnation incarnation)
    : stream_(std::make_shared<Stream>(channel, incarnation)) {
  stream_->Begin(kEchoMethod, security, LinkRole::kController);
}

EchoCall::~EchoCall() { End(Cancelled("the measurement has ended")); }

void EchoCall::End(const Status& reason) { stream_->End(reason); }

Result<double> EchoCall::Seconds(Way way, size_t bytes, Duration limit) {
  MR_CHECK(bytes > 0 && bytes <= kBytesMax) << bytes << " bytes are asked for";
  auto seconds = Exchange(way, bytes, limit);
  if (!seconds.ok()) End(seconds.status());
  return seconds;
}

Result<double> EchoCall::Exchange(Way way, size_t bytes, Duration limit) {
  const SteadyClock clock;
  const Time began = clock.Now();
  for (size_t left = bytes; left > 0;) {
    const auto part = static_cast<uint32_t>(std::min(left, wire::kEchoBytesMax));
    const Echo echo = way == Way::kToController ? Echo{.bytes = part} : Echo{.answer_bytes = part};
    MR_RETURN_IF_ERROR(stream_->SendOne(echo, limit));
    left -= part;
  }
  if (way == Way::kFromController) wanted_ += bytes;
  MR_ASSIGN_OR_RETURN(const uint64_t answered, stream_->WaitForAnswers(limit));
  const Duration took = clock.Now() - began;
  if (took > limit) return TooLate();
  if (answered == wanted_) return took.seconds();
  return DataLoss(fmt::format("the controller has answered {} of {} bytes", answered, wanted_));
}

}  // namespace millrace::cluster
