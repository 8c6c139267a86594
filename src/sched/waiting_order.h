// WaitingOrder: which waiting request is next, and the keys that order requests: the policy,
// applied to the table of requests. Requests that have started keep their place, so that the first
// of them always finishes (docs/decisions/0003-admission.md).
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "sched/order_policy.h"
#include "sched/request.h"
#include "sched/request_table.h"
#include "sched/scheduler.h"

namespace millrace::sched {

class WaitingOrder {
 public:
  // `requests`: not owned; outlives this object.
  WaitingOrder(SchedulingPolicy policy, RequestTable& requests)
      : policy_(MakeOrderPolicy(policy)), requests_(requests) {}

  // Gives the request its key, before it joins the table.
  void Join(Request& request);
  // The first waiting request that is not paused. Null: there is none.
  Request* Next() const;
  // It starts, and keeps its place from now on. REQUIRES: it waits.
  void Starts(Request& request);
  // It has ended, or leaves.
  void Leaves(Request& request);
  // Tokens were computed for it.
  void Charge(const Request& request, int64_t prompt_tokens, int64_t output_tokens) {
    policy_->Charge(request.client, prompt_tokens, output_tokens);
  }

 private:
  const std::unique_ptr<OrderPolicy> policy_;
  RequestTable& requests_;
  uint64_t next_number_ = 1;
};

}  // namespace millrace::sched
