// ClusterRoutes: the routes under /cluster, for operators: status, machines, decisions, and
// applying a plan, draining a worker, moving a request. Served on the admin endpoints only
// (admin_access.h). Owned by the service; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/http/router.h"
#include "serve/observe/cluster_admin.h"
#include "serve/observe/request_registry.h"
#include "serve/other_apis.h"

namespace millrace::serve {

class ClusterRoutes {
 public:
  // `loaded_from`: folder or name of the model, which a plan may name too. `registry`: outlives
  // this.
  ClusterRoutes(ChatRoutes routes, std::string loaded_from, const RequestRegistry& registry);
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void ShowStatus(Call call);
  void ShowMachines(Call call);
  void ShowDecisions(Call call);
  void ApplyPlan(Call call);
  void DrainWorker(Call call);
  void MigrateRequest(Call call);
  // The loaded model's cluster, or null after sending an error.
  ClusterAdmin* AdminOrReply(const Call& call) const;
  void AnswerWithModel(const Call& call, Json body) const;
  void AnswerAdmin(const Call& call, const Status& status, const char* param) const;
  // Whether a plan for this model is for the one that is served. Names of the hub may lack their
  // owner, and folders their path.
  bool Serves(std::string_view planned) const;

  const ChatRoutes routes_;
  const std::string loaded_from_;
  const RequestRegistry& registry_;
};

}  // namespace millrace::serve
