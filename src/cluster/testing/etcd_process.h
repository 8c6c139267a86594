// EtcdProcess: an etcd of one or several members on the loopback interface, in temporary folders,
// that a test may kill and start again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cluster/testing/temp_folder.h"

namespace millrace::cluster::testing {

class EtcdProcess {
 public:
  // More flags for each member, such as those of TLS; `scheme` of the clients' addresses.
  explicit EtcdProcess(int members, std::vector<std::string> flags = {},
                       std::string scheme = "http");
  ~EtcdProcess();

  int members() const { return static_cast<int>(members_.size()); }
  std::vector<std::string> endpoints() const;
  void Kill(int member);   // SIGKILL, and waits until it is gone
  void Start(int member);  // again, with what is in its folder

 private:
  struct Member {
    pid_t pid = -1;
    int client_port = 0;
    int peer_port = 0;
  };

  const std::vector<std::string> flags_;
  const std::string scheme_;
  TempFolder folder_;
  std::vector<Member> members_;
};

}  // namespace millrace::cluster::testing
