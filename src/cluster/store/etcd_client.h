// EtcdClient: connections to the members of one etcd cluster. Each call goes to a connected member.
// Owned by EtcdStore; any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/store/etcd_store.h"
#include "etcd/rpc.grpc.pb.h"

namespace millrace::cluster {

class EtcdClient {
 public:
  struct Member {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  };
  // Whether a call may be repeated when it is unknown if it took effect.
  enum class Repeat { kYes, kNo };
  using Rpc = std::function<grpc::Status(Member&, grpc::ClientContext&)>;

  static Result<std::unique_ptr<EtcdClient>> Create(const EtcdStoreOptions& options);

  Status Call(Duration timeout, Repeat repeat, const Rpc& rpc);

  // Returns a connected member, or nullptr when none connects within `timeout` or once `stop` is
  // set.
  Member* Connected(Duration timeout, const std::atomic<bool>* stop = nullptr);
  // Makes later calls try another member first.
  void AvoidMember(const Member& member);

 private:
  EtcdClient() = default;
  static Status WhyUnreachable(Member& member);

  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> current_ = 0;
};

Status FromEtcd(const grpc::Status& status);

}  // namespace millrace::cluster
