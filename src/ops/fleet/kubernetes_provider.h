// KubernetesProvider: a StatefulSet whose pods are the workers of one kind. It is scaled through
// the `scale` subresource of the API server, with the token and the authority of the pod's service
// account. A machine is a pod: SET-0, SET-1, ...; only the highest ordinal can be released.
//
// Owned by FleetHost; one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "net/http/http_client.h"
#include "ops/fleet/machine_provider.h"

namespace millrace::ops {

class KubernetesProvider : public MachineProvider {
 public:
  // `set`: [NAMESPACE/]STATEFULSET. kInvalidArgument: this process is no pod, and `access` does not
  // say what is missing.
  static Result<std::unique_ptr<KubernetesProvider>> Create(const std::string& set,
                                                            cluster::KubernetesAccess access,
                                                            Duration timeout,
                                                            const std::atomic<bool>& stop);

  Result<std::vector<cluster::ListedMachine>> List() override;
  Status Acquire(int count) override;
  Status Release(const std::string& id) override;

 private:
  struct Scale {
    int64_t replicas = 0;
    std::string version;  // changes with every change of the object
  };
  KubernetesProvider(std::string name, net::Url scale, std::string token_file, Duration timeout,
                     const std::atomic<bool>& stop)
      : name_(std::move(name)),
        scale_(std::move(scale)),
        token_file_(std::move(token_file)),
        timeout_(timeout),
        stop_(stop) {}

  Result<Json> Call(const char* method, const std::string& body);
  Result<net::HttpResponse> Fetch(net::HttpCall call);
  Result<Scale> Read();
  // Fails with kFailedPrecondition if the object has changed since it was read.
  Status Write(const Scale& before, int64_t replicas);
  // Reads, then writes what `wanted` says of the replicas; again if somebody else wrote meanwhile.
  Status Change(const std::function<Result<int64_t>(int64_t replicas)>& wanted);
  std::string PodName(int64_t ordinal) const;

  const std::string name_;
  const net::Url scale_;
  const std::string token_file_;
  const Duration timeout_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<net::HttpClient> http_;
};

}  // namespace millrace::ops
