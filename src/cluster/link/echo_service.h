// EchoService: answers the echoes of workers that measure their links with the controller, on
// gRPC's threads and without the controller's lock. Private to ControlServer, which owns it; any
// thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/link/link_grpc.h"

namespace millrace::cluster {

class EchoService {
 public:
  static constexpr size_t kCallsMax = 4;  // the controller asks for one measurement at a time
  static constexpr Duration kCallLimit = Duration::Seconds(15);  // longer than a worker measures

  explicit EchoService(Gatekeeper& gate) : gate_(gate) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Begin(
      grpc::CallbackServerContext* context);
  // Drops the calls that are older than kCallLimit.
  void Tick(Time now);
  // Call after the server has shut down. Waits until every call has ended.
  void Join();

 private:
  class Call;
  void Ended(const std::shared_ptr<Call>& call);

  Gatekeeper& gate_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::shared_ptr<Call>> calls_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
