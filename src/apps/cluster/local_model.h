// LocalModel: everything that a command needs to run a model in its own process, built from the
// flags: tokenizer, chat template, device, weights, KV pools, and a controller with one worker,
// which are connected by queues instead of sockets.
//
// Owns all of these. LoadLocalModel blocks until they are ready. The clock must outlive the model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/engine_flags.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/generator.h"
#include "cluster/recovered_requests.h"
#include "core/model_spec.h"
#include "model/config.h"
#include "model/model_path.h"
#include "serve/observe/cluster_admin.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace::apps {

struct LocalModel {
  model::ModelPath path;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
  ModelSpec spec;
  std::string weights_fingerprint;  // "": not asked for
  model::GenerationConfig generation;
  std::vector<std::string> notes;  // on the weight files, each a line for the log
  KvPlan kv;
  int block_size = 0;
  std::string device_name;
  std::unique_ptr<serve::ClusterAdmin> cluster;
  std::unique_ptr<cluster::RecoveredRequests> earlier;  // null: no journal
  std::shared_ptr<cluster::Generator> engine;           // last: destroyed first; never shared
};

struct LocalModelOptions {
  std::string chat_template;  // a file, or the template itself when it holds "{{" or "{%"
  // For a server: leaves a CPU to the front end, and reads the weights a second time, beside their
  // loading, for the fingerprint in answers.
  bool serves = false;
  std::function<void(int64_t done, int64_t total)> progress;
};

// Finds the model, or downloads it, and loads its tokenizer and chat template: no weights, no
// controller.
Result<std::unique_ptr<LocalModel>> LoadModelText(const EngineFlags& flags,
                                                  const std::string& chat_template);

Result<std::unique_ptr<LocalModel>> LoadLocalModel(const EngineFlags& flags,
                                                   const LocalModelOptions& options,
                                                   const Clock& clock);

// Loads with a progress bar on stderr.
Result<std::unique_ptr<LocalModel>> LoadWithProgress(const EngineFlags& flags,
                                                     LocalModelOptions options, const Clock& clock);

// Returns a few lines for the user: model, device, context, KV cache.
std::string Summary(const LocalModel& model);

}  // namespace millrace::apps
