// The options of the commands that make up a cluster, and how they become settings.
#pragma once

#include <string>

#include "apps/cli/command.h"
#include "apps/cluster/cluster_model.h"
#include "base/status.h"
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
  int stages = 1, tensor_parallel = 1;
  bool fixed = false;
};
void AddLayoutOptions(Command& command, ControllerFlags* flags);
// Fills all but the security and the address.
Status ReadLayout(const ControllerFlags& flags, ClusterFlags* cluster);

}  // namespace millrace::apps
