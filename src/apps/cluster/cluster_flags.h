// The options of the commands that make up a cluster, and how they become settings.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "apps/cluster/cluster_model.h"
#include "base/status.h"
#include "cluster/journal.h"
#include "cluster/link_security.h"

namespace millrace::apps {

// How a process shows who it is to the others.
struct TrustFlags {
  std::string token_file, tls_dir;
  bool insecure = false;
};
void AddTrustOptions(Command& command, TrustFlags* flags);
// kInvalidArgument: a token or a TLS folder is missing or cannot be read.
Result<cluster::LinkSecurity> ReadTrust(const TrustFlags& flags);

// What controllers take besides.
struct ControllerFlags {
  TrustFlags trust;
  std::string listen, plan_file;
  std::optional<int> stages;  // none: the command's default
  int tensor_parallel = 1;
  bool fixed = false;
  std::string journal;
  cluster::JournalSync journal_sync = cluster::JournalSync::kNever;
};
// `default_stages`: what --pipeline-parallel-size is when it is not given.
void AddLayoutOptions(Command& command, ControllerFlags* flags, const std::string& default_stages);
// A plan says itself how many stages there are.
Status ValidateLayout(const ControllerFlags& flags);
// `default_folder`: what --journal is when it is not given.
void AddJournalOptions(Command& command, ControllerFlags* flags, const std::string& default_folder);
// Whether more than the default of --journal-sync is asked for.
bool WantsSync(const ControllerFlags& flags);
// Streams that cannot be resumed need no journal, and without a journal nothing is synced. `store`:
// of the cluster, or empty.
Status ValidateJournal(const ControllerFlags& flags, const std::string& store,
                       double resume_grace_s);
// nullopt: there is none.
std::optional<cluster::JournalOptions> ReadJournal(const ControllerFlags& flags,
                                                   const std::string& store, double resume_grace_s);
// Fills all but the security, the address and the journal.
Status ReadLayout(const ControllerFlags& flags, ClusterFlags* cluster);

}  // namespace millrace::apps
