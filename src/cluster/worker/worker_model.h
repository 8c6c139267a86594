// A worker's model: the worker's identity in a cluster, and the loader of the layers it is given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cluster/transfer/weight_exchange.h"
#include "cluster/worker/worker_host.h"
#include "core/worker_messages.h"
#include "model/describe.h"
#include "model/digest_cache.h"

namespace millrace::cluster {

// Where a worker gets its weights.
enum class WeightsFrom {
  kAuto,  // the disk where the folder has them, else other workers
  kDisk,
  kPeer,  // other workers, and the disk when they have none
};

// Of the free memory, for KV that has no size of its own.
inline constexpr double kKvMemoryShare = 0.4;

struct WorkerModelOptions {
  std::string folder;
  bool on_disk = true;                      // the folder has all of it
  std::shared_ptr<WeightExchange> weights;  // tried first; null: only the disk
  int threads = 1;
  std::optional<int64_t> kv_bytes;  // for all its pipelines; none: kKvMemoryShare
  // KV memory that is kept ready for requests to come; none: stage::KvAheadBytes; 0: nothing.
  std::optional<int64_t> populate_kv_bytes;
  // What a load may take beside weights that are loaded already; none: what these and their KV
  // leave.
  std::optional<int64_t> extra_bytes;
  std::optional<int> max_model_len;
};

// A worker's identity in the cluster, and what it has of the model.
struct WorkerModel {
  WorkerIdentity identity;  // without model and KV layout if the folder has no weights
  std::string folder;
  bool on_disk = false;
  bool from_peers = false;
  std::shared_ptr<WeightExchange> weights;  // serves others; fetches `from_peers`
};
// `model`: a folder, or a name in the Hugging Face cache. Reads weights that are on disk once, for
// the fingerprint, unless their digests are in the cache. kAuto, kDisk: errors as of FindModel and
// Model::Load. kAuto accepts a folder that lacks files, kPeer also one that does not exist yet.
Result<WorkerModel> OpenWorkerModel(const std::string& model, WeightsFrom from,
                                    const model::DigestCache& cache, const Clock& clock);

std::string KvLayoutName(const ModelSpec& spec);

// The loader keeps what the worker has: a load reads only the weights that no shard on this worker
// has, front layers first. kResourceExhausted, with the numbers: there is no memory for these.
ShardLoader MakeShardLoader(WorkerModelOptions options);

}  // namespace millrace::cluster
