// Loads of links, network cards and trunks by the requests of one unit, with the KV between its
// pools, and the time that a request's KV takes. Internal to the estimate; one thread.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "plan/roles/pool_latency.h"
#include "plan/roles/role_estimate.h"

namespace millrace::plan {

class RoleNetwork {
 public:
  // The pools' layers are by node. `problem` outlives this.
  RoleNetwork(const RoleProblem& problem, const PoolFlow& prefill, const Placement& prefill_layers,
              const PoolFlow& decode, const Placement& decode_layers);

  const std::vector<HandOver>& hand_overs() const { return hand_overs_; }
  double most() const { return most_; }  // requests per second
  const std::string& limit() const { return limit_; }
  // The mean time of a request's KV when the network carries `rate` requests per second.
  double KvSeconds(double rate) const;

 private:
  struct LinkLoad {
    int from = 0, to = 0;
    double tokens = 0;  // of activations, per request
  };
  void AddPool(const PoolFlow& pool, double tokens);
  template <typename Name>
  void Bound(double tokens_per_s, double tokens, const Name& name);
  void FindMost();

  const RoleProblem& problem_;
  std::vector<LinkLoad> loads_;
  std::vector<HandOver> hand_overs_;
  double kv_s_ = 0;
  double most_ = std::numeric_limits<double>::max();
  std::string limit_;
};

}  // namespace millrace::plan
