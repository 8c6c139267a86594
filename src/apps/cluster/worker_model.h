// A worker's model: who this process is to a cluster, and how it loads the layers it is told to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "cluster/weight_exchange.h"
#include "cluster/worker_host.h"
#include "core/worker_messages.h"
#include "model/describe.h"

namespace millrace::apps {

// Where a worker has its weights from.
enum class WeightsFrom {
  kAuto,  // the disk where the folder has them, else other workers
  kDisk,
  kPeer,  // other workers, and the disk when they have none
};

struct WorkerModelOptions {
  std::string folder;
  bool on_disk = true;                               // the folder has all of it
  std::shared_ptr<cluster::WeightExchange> weights;  // asked first; null: the disk alone
  int threads = 1;
  std::optional<int64_t> kv_bytes;  // for all its pipelines; none: a share of what is free
  std::optional<int> max_model_len;
  int max_num_seqs = 128;
};

// Who a worker is to the cluster, and what it has of the model.
struct WorkerModel {
  WorkerIdentity identity;  // without model and KV layout where the folder has none
  std::string folder;
  bool on_disk = false;
  bool from_peers = false;
  std::shared_ptr<cluster::WeightExchange> weights;  // serves others; fetches `from_peers`
};
// `model`: a folder, or a name in the Hugging Face cache. Reads weights that are there once, for
// the fingerprint. kAuto, kDisk: errors as FindModel and Model::Load; kAuto takes a folder that
// lacks files, kPeer one that does not exist yet.
Result<WorkerModel> OpenWorkerModel(const std::string& model, WeightsFrom from, const Clock& clock);

// The class of processes that compute the same bits as this one, for WorkerIdentity.
std::string NumericClass();
std::string KvLayoutName(const ModelSpec& spec);

cluster::ShardLoader MakeShardLoader(WorkerModelOptions options);

}  // namespace millrace::apps
