// ControllerAdmin: what the routes under /cluster do on a controller, and what companions of the
// controller add to the answers. The JSON is that of ClusterView and MachinesView.
//
// Owned by the model that is served. Any thread may call it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cluster/machines_view.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/runtime/controller_host.h"
#include "ops/cluster/kept_plan.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

// The answers of GET /cluster/status and /cluster/machines. Pure; any thread.
Json StatusJson(const std::string& model, const cluster::ClusterStatus& status);
MachinesView MachinesOf(const cluster::ClusterStatus& status);

// What a companion adds to the answers. Any thread may call the functions.
struct AdminAdditions {
  std::function<void(Json& status)> status;
  std::function<void(std::vector<serve::ClusterMetric>& metrics)> metrics;
  std::function<Json()> decisions = {};  // empty: it has none
};

class ControllerAdmin : public serve::ClusterAdmin {
 public:
  // `kept` stores each plan that is applied; null: plans are not stored. With `kept`, `host` calls
  // the admin, so `host` is destroyed first. Otherwise nobody calls the admin without a host.
  ControllerAdmin(cluster::ControllerHost& host, std::string model,
                  std::unique_ptr<ops::KeptPlan> kept);

  void Add(AdminAdditions additions) {
    const MutexLock lock(adding_);
    additions_.push_back(std::move(additions));
  }
  // Takes back what was added last. Waits for the calls that use it.
  void RemoveLast() {
    const MutexLock lock(adding_);
    additions_.pop_back();
  }

  Json Describe() override;
  Json Machines() override { return WriteJson(MachinesOf(host_.Describe())); }
  Json Decisions() override;
  std::vector<serve::ClusterMetric> Metrics() override;
  Result<int64_t> ApplyPlan(WorkerPlan plan, std::string as_sent) override;
  Status Drain(std::string_view worker) override { return host_.DrainWorker(worker); }
  Status Migrate(RequestId request, std::string_view worker) override {
    return host_.Migrate(request, worker);
  }

 private:
  void Settle(int64_t epoch, bool in_force);

  cluster::ControllerHost& host_;
  const std::string model_;
  const std::unique_ptr<ops::KeptPlan> kept_;
  Mutex adding_;
  std::vector<AdminAdditions> additions_ MR_GUARDED_BY(adding_);
  Mutex applying_;
  Mailbox settling_;  // last: its work uses the other members
};

}  // namespace millrace::apps
