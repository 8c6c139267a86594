#include "apps/cluster/cluster_model.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "apps/cluster/cell_admin.h"
#include "apps/cluster/worker_model.h"
#include "cluster/request_journal.h"
#include "model/describe.h"
#include "model/weight_digests.h"

namespace millrace::apps {
namespace {

constexpr Duration kJournalHeldLimit = Duration::Seconds(10);
constexpr auto kJournalRetry = std::chrono::milliseconds(100);

uint64_t Random64() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// What a cell needs as long as it runs; the first is given up last, after the last word to workers
// and journal.
struct ServedCell {
  std::shared_ptr<Leading> leading;
  std::unique_ptr<cluster::RequestJournal> journal;  // null: none
  std::unique_ptr<cluster::CellServer> server;

  // What is aborted cannot be put on record any more, and says so.
  void DrainWhenLost() {
    if (leading) leading->OnLoss([this] { server->cell().Drain(Duration{}); });
  }
  ~ServedCell() {
    if (leading) leading->OnLoss(nullptr);
  }
};

cluster::JournalOptions JournalFor(const ClusterFlags& cluster) {
  cluster::JournalOptions options = *cluster.journal;
  if (!cluster.leading) return options;
  options.owner = {cluster.leading->cluster_id(), cluster.leading->term()};
  options.leads = [leading = cluster.leading] { return leading->Leads(); };
  return options;
}

Result<std::unique_ptr<cluster::RequestJournal>> OpenJournal(const cluster::JournalOptions& options,
                                                             const Clock& clock) {
  const Time begun = clock.Now();
  while (true) {
    auto journal = cluster::RequestJournal::Open(options, clock);
    const bool held = journal.status().code() == StatusCode::kFailedPrecondition;
    if (!held || clock.Now() - begun > kJournalHeldLimit) return journal;
    std::this_thread::sleep_for(kJournalRetry);
  }
}

cluster::CellOptions CellOptionsFor(const EngineFlags& flags, const ClusterFlags& cluster,
                                    const LocalModel& model, std::vector<TokenId> eos) {
  cluster::CellOptions options;
  cluster::ControllerOptions& c = options.controller;
  c.term = cluster.term;
  c.model = model.path.name;
  c.num_layers = model.spec.num_layers;
  c.stages = cluster.stages;
  c.tensor_parallel = cluster.tensor_parallel;
  c.elastic = cluster.elastic;
  c.plan = cluster.plan;
  c.node_names = cluster.node_names;
  c.secret = Random64();
  sched::SchedulerOptions& s = c.scheduler;
  s.block_size = flags.block_size;
  s.max_num_seqs = flags.max_num_seqs;
  s.max_num_batched_tokens = flags.max_num_batched_tokens;
  s.max_model_len = model.kv.max_model_len;
  s.policy = flags.policy;
  s.kv_policy = flags.kv_policy;
  s.costs.kv_bytes_per_block = model.spec.KvBytesPerToken() * flags.block_size;
  s.num_host_blocks = HostBlocks(flags, s.costs.kv_bytes_per_block);
  s.preemption = flags.preemption;
  s.prefix_caching = flags.prefix_caching;
  s.eos_token_ids = std::move(eos);
  options.seed = flags.seed.value_or(Random64());
  return options;
}

}  // namespace

Result<ClusterModel> StartClusterModel(const EngineFlags& flags, const std::string& chat_template,
                                       const ClusterFlags& cluster, const Clock& clock) {
  ClusterModel result;
  MR_ASSIGN_OR_RETURN(result.model, LoadModelText(flags, chat_template));
  LocalModel& model = *result.model;
  MR_ASSIGN_OR_RETURN(model::ModelDescription description, model::DescribeModel(model.path.folder));
  model.spec = description.spec;
  model.generation = description.generation;
  model.block_size = flags.block_size;
  model.kv.max_model_len = flags.max_model_len.value_or(model.spec.max_position);
  model.device_name = "workers that join";
  std::vector<TokenId> eos = model.generation.eos;
  if (eos.empty() && model.tokenizer->eos()) eos.push_back(*model.tokenizer->eos());
  cluster::CellOptions options = CellOptionsFor(flags, cluster, model, std::move(eos));
  MR_ASSIGN_OR_RETURN(const auto digests, model::WeightDigests::OfFolder(model.path.folder));
  options.controller.identity.model_fingerprint = digests.fingerprint();
  options.controller.identity.kv_layout = KvLayoutName(model.spec);
  std::unique_ptr<KeptPlan> kept;
  if (cluster.leading) {
    kept = std::make_unique<KeptPlan>(
        *cluster.leading, options.controller.identity.model_fingerprint, cluster.layout);
    MR_ASSIGN_OR_RETURN(auto applied, kept->Read());
    if (applied) {
      options.controller.plan = std::move(applied->plan);
      options.controller.node_names = std::move(applied->workers);
    }
  }
  std::unique_ptr<cluster::RequestJournal> journal;
  if (cluster.journal) {
    MR_ASSIGN_OR_RETURN(journal, OpenJournal(JournalFor(cluster), clock));
    options.first_request = journal->first_request();
    options.journal = journal->Hooks();
  }
  cluster::ControlServerOptions server;
  server.address = cluster.listen;
  server.security = cluster.security;
  MR_ASSIGN_OR_RETURN(auto served,
                      cluster::CellServer::Start(std::move(options), std::move(server), clock));
  if (journal) model.earlier = cluster::NewCellRecovery(served->cell(), *journal);
  result.server = served.get();
  cluster::Cell& cell = served->cell();
  model.cluster = NewCellAdmin(cell, model.path.name, std::move(kept));
  std::shared_ptr<ServedCell> held(
      new ServedCell{cluster.leading, std::move(journal), std::move(served)});
  held->DrainWhenLost();
  model.engine = {std::move(held), &cell};
  return result;
}

}  // namespace millrace::apps
