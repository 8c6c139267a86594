// CellServer: a Cell that workers reach over the network: the control server's sessions are the
// cell's connections. Owned by main(); the cell's callers may be any thread.
#pragma once

#include <memory>

#include "base/clock.h"
#include "cluster/cell.h"
#include "cluster/control_server.h"

namespace millrace::cluster {

class CellServer {
 public:
  // Listens at once. `clock` outlives it.
  static Result<std::unique_ptr<CellServer>> Start(CellOptions cell, ControlServerOptions server,
                                                   const Clock& clock);
  ~CellServer();

  Cell& cell() { return *cell_; }
  int port() const { return server_->port(); }
  ControlServerCounters link_counters() const { return server_->counters(); }

 private:
  CellServer() = default;
  std::unique_ptr<Cell> cell_;
  std::unique_ptr<ControlServer> server_;
};

}  // namespace millrace::cluster
