// ControllerProcess: a ControllerHost that workers reach over the network. The sessions of the
// control server are the controller's connections. Owned by the process that serves the cluster;
// host() may be called from any thread.
#pragma once

#include <memory>

#include "base/clock.h"
#include "cluster/link/control_server.h"
#include "cluster/runtime/controller_host.h"

namespace millrace::cluster {

class ControllerProcess {
 public:
  // Returns once the server listens. `clock` outlives the ControllerProcess.
  static Result<std::unique_ptr<ControllerProcess>> Start(ControllerHostOptions host,
                                                          ControlServerOptions server,
                                                          const Clock& clock);
  ~ControllerProcess();

  ControllerHost& host() { return *host_; }
  int port() const { return server_->port(); }
  ControlServerCounters link_counters() const { return server_->counters(); }

 private:
  ControllerProcess() = default;
  std::unique_ptr<ControllerHost> host_;
  std::unique_ptr<ControlServer> server_;
};

}  // namespace millrace::cluster
