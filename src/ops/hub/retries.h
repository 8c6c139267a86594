// Retries: how often, and when, a call of the hub that failed is made again. One thread.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "ops/hub/hub_client.h"

namespace millrace::ops {

struct RetryPolicy {
  int attempts = 5;  // in a row, without progress
  Duration first = Duration::Seconds(1);
  Duration most = Duration::Seconds(30);
  std::function<void(Duration)> sleep;  // null: the thread sleeps
};

class Retries {
 public:
  explicit Retries(RetryPolicy policy) : policy_(std::move(policy)) {}

  // After a failure: waits and returns OK, or returns why the call must not be made again.
  // `progressed`: before it failed, it came nearer to its end than any call before it.
  Status Next(const HubResult& failed, bool progressed);

 private:
  const RetryPolicy policy_;
  int failures_ = 0;
};

}  // namespace millrace::ops
