// The options of the commands that run a cluster (`serve --cluster`, `up`, `worker`), and the
// settings that follow from them.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "apps/cluster/cluster_model.h"
#include "base/status.h"
#include "cluster/control/layout/layout_shape.h"
#include "cluster/control/routing/dispatch.h"
#include "cluster/journal/journal.h"
#include "cluster/link/link_security.h"

namespace millrace::apps {

// How a process authenticates itself to the others.
struct TrustFlags {
  std::string token_file, tls_dir;
  bool insecure = false;
};
void AddTrustOptions(Command& command, TrustFlags* flags);
// kInvalidArgument: a token or a TLS folder is missing or cannot be read.
Result<cluster::LinkSecurity> ReadTrust(const TrustFlags& flags);

// The further options of controllers.
struct ControllerFlags {
  TrustFlags trust;
  std::string listen, plan_file;
  std::optional<int> stages;  // none: the command's default
  int tensor_parallel = 1;
  std::optional<int> prefill_workers, decode_workers, replicas;
  bool fixed = false;
  std::optional<cluster::DispatchPolicy> dispatch;  // none: replicas share requests by flow
  bool cross_class_replay = false;
  std::string journal;
  cluster::JournalSync journal_sync = cluster::JournalSync::kNever;
};
// `default_stages`: the default of --pipeline-parallel-size in --help.
void AddLayoutOptions(Command& command, ControllerFlags* flags, const std::string& default_stages);
// The automatic layout that the flags ask for. kInvalidArgument: they contradict each other.
Result<cluster::LayoutShape> ShapeOf(const ControllerFlags& flags);
// Refuses layout options that contradict each other or a plan, which already determines the layout.
Status ValidateLayout(const ControllerFlags& flags);
// `default_folder`: the default of --journal in --help.
void AddJournalOptions(Command& command, ControllerFlags* flags, const std::string& default_folder);
// Whether --journal-sync is set to anything but its default.
bool WantsSync(const ControllerFlags& flags);
// Refuses --journal without --resume-grace and --journal-sync without a journal. `store`: the
// cluster's, or empty.
Status ValidateJournal(const ControllerFlags& flags, const std::string& store,
                       double resume_grace_s);
// nullopt: no journal is kept.
std::optional<cluster::JournalOptions> ReadJournal(const ControllerFlags& flags,
                                                   const std::string& store, double resume_grace_s);
// Fills the fields of `cluster` that describe the layout. kInvalidArgument: the plan cannot be
// read, or does not go with the other options.
Status ReadLayout(const ControllerFlags& flags, ClusterFlags* cluster);

}  // namespace millrace::apps
