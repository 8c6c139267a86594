// EchoCall: a worker's call of Control/Echo, on a connection of its own. It sends bytes to the
// controller, which answers with bytes, and says how long that took. The bytes travel as steps and
// their results do: as messages of the control plane, in gRPC's frames, encrypted where those are.
//
// Made by ControlClient and owned by whoever measures. One thread calls Seconds; any thread may
// call End.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/link/link_security.h"
#include "core/worker_messages.h"

namespace grpc {
class Channel;
}

namespace millrace::cluster {

class EchoCall {
 public:
  enum class Way : uint8_t { kToController, kFromController };
  static constexpr size_t kBytesMax = size_t{8} << 20;  // of one Seconds

  EchoCall(const std::shared_ptr<grpc::Channel>& channel, const LinkSecurity& security,
           Incarnation incarnation);
  ~EchoCall();  // ends the call

  // From the first byte sent until the answer to the last: `bytes` one way, in messages of at most
  // wire::kEchoBytesMax, and messages without content the other way. The first one waits for the
  // connection as well. After an error the call has ended. kDeadlineExceeded: it took longer than
  // `limit`. REQUIRES: 0 < bytes <= kBytesMax.
  Result<double> Seconds(Way way, size_t bytes, Duration limit);
  // A running Seconds returns `reason`.
  void End(const Status& reason);

 private:
  class Stream;
  Result<double> Exchange(Way way, size_t bytes, Duration limit);

  const std::shared_ptr<Stream> stream_;
  uint64_t wanted_ = 0;  // bytes in all answers; of the measuring thread
};

}  // namespace millrace::cluster
