// AdminLayer: a ClusterAdmin that passes every call on to the one below it, for those that add
// something. Any thread, as the one below.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/observe/cluster_admin.h"

namespace millrace::ops {

class AdminLayer : public serve::ClusterAdmin {
 public:
  explicit AdminLayer(std::unique_ptr<serve::ClusterAdmin> below) : below_(std::move(below)) {}
  serve::ClusterAdmin& below() { return *below_; }

  Json Describe() override { return below_->Describe(); }
  Json Machines() override { return below_->Machines(); }
  Json Decisions() override { return below_->Decisions(); }
  std::vector<serve::ClusterMetric> Metrics() override { return below_->Metrics(); }
  Result<int64_t> ApplyPlan(WorkerPlan plan, std::string as_sent) override {
    return below_->ApplyPlan(std::move(plan), std::move(as_sent));
  }
  Status Drain(std::string_view worker) override { return below_->Drain(worker); }
  Status Migrate(RequestId request, std::string_view worker) override {
    return below_->Migrate(request, worker);
  }

 private:
  const std::unique_ptr<serve::ClusterAdmin> below_;
};

}  // namespace millrace::ops
