#include "net/collective/nccl_imitation.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using millrace::net::NcclImitation;

namespace {

std::mutex mutex;  // guards everything

// The values that each rank of a communicator has put into each of its sums.
struct Clique {
  int size = 0, joined = 0;
  std::map<int, std::map<int, std::vector<float>>> sums;  // [number of the sum][rank]
};

std::map<std::string, std::weak_ptr<Clique>> cliques;

std::shared_ptr<Clique> Join(const std::string& name, int size) {
  auto clique = cliques[name].lock();
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = size;
    cliques[name] = clique;
  }
  ++clique->joined;
  return clique;
}

}  // namespace

struct ncclComm {
  ncclComm(std::string called, int r, int size)
      : name(std::move(called)), rank(r), clique(Join(name, size)) {
    ++NcclImitation::communicators;
  }
  ~ncclComm() { --NcclImitation::communicators; }

  std::string name;
  int rank = 0;
  std::shared_ptr<Clique> clique;
  int splits = 0, sums = 0;
};

struct CUstream_st {
  struct Sum {
    std::shared_ptr<Clique> clique;
    int rank = 0, number = 0;
    float* values = nullptr;
    size_t count = 0;
  };
  std::deque<Sum> todo;
};

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  std::memset(id->internal, 0xab, sizeof id->internal);  // every byte must arrive
  std::snprintf(id->internal, 32, "%d", ++made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  std::lock_guard lock(mutex);
  *comm = new ncclComm(std::string(id.internal, sizeof id.internal), rank, size);
  return ncclInProgress;
}

// Supports only splits with two ranks of each colour.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  std::lock_guard lock(mutex);
  const std::string name = comm->name + "/" + std::to_string(comm->splits++) + ":";
  *made = new ncclComm(name + std::to_string(color), key == color ? 0 : 1, 2);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  std::lock_guard lock(mutex);
  *error = NcclImitation::breaks                       ? ncclRemoteError
           : comm->clique->joined < comm->clique->size ? ncclInProgress
                                                       : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (from != to || type != ncclFloat || op != ncclSum) return ncclInvalidArgument;
  std::lock_guard lock(mutex);
  NcclImitation::ranks_most = std::max<int>(NcclImitation::ranks_most, comm->clique->size);
  stream->todo.push_back({comm->clique, comm->rank, comm->sums++, static_cast<float*>(to), count});
  return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::lock_guard lock(mutex);
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "imitated NCCL error"; }

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "imitated CUDA error"; }

// Executes one step: contributes this rank's values, or takes the sum when all ranks have
// contributed.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  if (stream->todo.empty()) return cudaSuccess;
  if (NcclImitation::stalls) return cudaErrorNotReady;
  CUstream_st::Sum& sum = stream->todo.front();
  auto& given = sum.clique->sums[sum.number];
  if (!given.contains(sum.rank)) given[sum.rank].assign(sum.values, sum.values + sum.count);
  if (static_cast<int>(given.size()) < sum.clique->size) return cudaErrorNotReady;
  std::fill_n(sum.values, sum.count, 0.0f);
  for (const auto& [rank, values] : given) {  // in the order of the communicator's ranks
    if (values.size() != sum.count) return cudaErrorInvalidValue;
    for (size_t i = 0; i < sum.count; ++i) sum.values[i] += values[i];
  }
  sum.clique->sums.erase(sum.number - 2);  // all ranks are past it
  stream->todo.pop_front();
  return stream->todo.empty() ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"

namespace millrace::net {

CUstream_st* NewImitatedStream() { return new CUstream_st; }

}  // namespace millrace::net
