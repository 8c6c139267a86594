// Replaces ucx_remote_memory.cc in a build without UCX.
#include "net/data/remote_memory.h"

namespace millrace::net {

Result<std::unique_ptr<RemoteMemory>> OpenRemoteMemory(EventLoop&, const std::string&) {
  return Unimplemented(
      "this build cannot read memory over RDMA; build with -DMILLRACE_UCX=ON (docs/cluster.md)");
}

}  // namespace millrace::net
