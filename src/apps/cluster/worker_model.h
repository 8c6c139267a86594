// A worker's model: who this process is to a cluster, and how it loads the layers it is told to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cluster/worker_host.h"
#include "core/worker_messages.h"
#include "model/describe.h"

namespace millrace::apps {

struct WorkerModelOptions {
  std::string folder;
  int threads = 1;
  std::optional<int64_t> kv_bytes;  // for all its lanes; none: a share of what is free
  std::optional<int> max_model_len;
  int max_num_seqs = 128;
};

// Reads the weights once, for the fingerprint.
Result<WorkerIdentity> IdentifyModel(const std::string& folder);
// The class of processes that compute the same bits as this one, for WorkerIdentity.
std::string NumericClass();
std::string KvLayoutName(const ModelSpec& spec);

cluster::ShardLoader MakeShardLoader(WorkerModelOptions options);

}  // namespace millrace::apps
