// ClusterModel: the model that `serve --cluster` and `up` serve. Its tokenizer and chat template
// are in this process; its layers are on workers that join.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/cluster/controller_admin.h"
#include "apps/cluster/local_model.h"
#include "apps/common/engine_flags.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/layout_shape.h"
#include "cluster/control/routing/dispatch.h"
#include "cluster/journal/journal.h"
#include "cluster/link/link_security.h"
#include "cluster/runtime/controller_process.h"
#include "ops/cluster/leading.h"

namespace millrace::apps {

struct ClusterFlags {
  std::string listen = "127.0.0.1:0";  // workers join here
  cluster::LinkSecurity security;
  std::optional<Plan> plan;
  std::vector<std::string> node_names;
  std::string layout;          // the options or the plan as text; equal texts mean the same layout
  cluster::LayoutShape shape;  // without a plan
  bool elastic = true;
  std::optional<cluster::DispatchPolicy> dispatch;  // none: replicas share requests by flow
  bool cross_class_replay = false;
  Term term{1};
  std::optional<cluster::JournalOptions> journal;
  std::shared_ptr<ops::Leading> leading;  // kept as long as the model; null: no other can lead
};

// A model that a controller serves. Workers join at the port of `server`.
struct ClusterModel {
  std::unique_ptr<LocalModel> model;
  cluster::ControllerProcess* server = nullptr;  // the model's controller owns it
  ControllerAdmin* admin = nullptr;              // the model owns it
};

// Loads no weights; requests wait until workers have loaded theirs. Takes over the journal of an
// earlier leader of the cluster. If another process holds the journal, waits a short time for it.
Result<ClusterModel> StartClusterModel(const EngineFlags& flags, const std::string& chat_template,
                                       const ClusterFlags& cluster, const Clock& clock);

// The model keeps the companion, and destroys it before the controller. Its `additions` are part of
// the admin's answers.
void Accompany(ClusterModel& model, std::shared_ptr<void> companion, AdminAdditions additions);

}  // namespace millrace::apps
