// EtcdProcess: an etcd cluster of one or more members on the loopback interface, with data in a
// temporary folder. A test can kill and restart its members. Owned by the test; one thread at a
// time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/testing/temp_folder.h"

namespace millrace::cluster::testing {

class EtcdProcess {
 public:
  // `flags`: more flags for each member, such as those for TLS. `scheme`: of the client URLs.
  explicit EtcdProcess(int members, std::vector<std::string> flags = {},
                       std::string scheme = "http");
  ~EtcdProcess();

  int members() const { return static_cast<int>(members_.size()); }
  std::vector<std::string> endpoints() const;
  void Kill(int member);   // SIGKILL; waits until the process is gone
  void Start(int member);  // restarts a killed member with the data in its folder

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
