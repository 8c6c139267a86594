#include "apps/cluster/cluster_model.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "apps/cluster/controller_options.h"
#include "apps/cluster/end_tokens.h"
#include "base/log.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/runtime/request_journal.h"
#include "cluster/worker/worker_model.h"
#include "model/describe.h"
#include "text/grammars.h"

namespace millrace::apps {
namespace {

constexpr Duration kJournalHeldLimit = Duration::Seconds(10);
constexpr auto kJournalRetry = std::chrono::milliseconds(100);

// What a running controller needs. Destroyed in reverse: the leadership ends last, after the last
// messages to workers and the last record of the journal.
struct ServedController {
  std::shared_ptr<ops::Leading> leading;
  std::unique_ptr<cluster::RequestJournal> journal;  // null: none
  std::unique_ptr<cluster::ControllerProcess> server;

  // On loss of the leadership, aborts all requests: their outputs cannot be recorded any more.
  void DrainWhenLost() {
    if (leading) leading->OnLoss([this] { server->host().Drain(Duration{}); });
  }
  ~ServedController() {
    if (leading) leading->OnLoss(nullptr);
  }
};

// A controller with a companion, which ends before the controller does.
struct Accompanied {
  std::shared_ptr<cluster::Generator> engine;
  ControllerAdmin* admin;  // outlives the controller
  std::shared_ptr<void> companion;

  ~Accompanied() { admin->RemoveLast(); }
};

cluster::JournalOptions JournalFor(const ClusterFlags& cluster) {
  cluster::JournalOptions options = *cluster.journal;
  if (!cluster.leading) return options;
  options.owner = {cluster.leading->cluster_id(), cluster.leading->term()};
  options.leads = [leading = cluster.leading] { return leading->Leads(); };
  options.on_lost = [leading = cluster.leading](const Status& why) { leading->GiveWay(why); };
  return options;
}

Result<std::unique_ptr<cluster::RequestJournal>> OpenWhenFree(
    const cluster::JournalOptions& options, const Clock& clock) {
  const Time begun = clock.Now();
  while (true) {
    auto journal = cluster::RequestJournal::Open(options, clock);
    const bool held = journal.status().code() == StatusCode::kFailedPrecondition;
    if (!held || clock.Now() - begun > kJournalHeldLimit) return journal;
    std::this_thread::sleep_for(kJournalRetry);
  }
}

// A leader of a later term may have owned the folder although this process leads: the store was
// restored from a backup. It is another store from then on.
Result<std::unique_ptr<cluster::RequestJournal>> OpenJournal(const ClusterFlags& cluster,
                                                             const Clock& clock) {
  auto journal = OpenWhenFree(JournalFor(cluster), clock);
  if (journal.status().code() != StatusCode::kFailedPrecondition || !cluster.leading) {
    return journal;
  }
  MR_LOG(warn, "{}; trying again as a leader of a store that was restored",
         journal.status().message());
  MR_RETURN_IF_ERROR(cluster.leading->ChooseClusterId());
  return OpenWhenFree(JournalFor(cluster), clock);
}

// Adds to the scheduler's options the term, the layout and the secret.
void SetLayout(const ClusterFlags& cluster, cluster::ControllerOptions& options) {
  options.term = cluster.term;
  options.last_id = Random64() >> (64 - (cluster::IdSource::kIdBits - 1));
  options.shape = cluster.shape;
  options.elastic = cluster.elastic;
  options.plan = cluster.plan;
  options.node_names = cluster.node_names;
  if (cluster.dispatch) {
    options.dispatch = cluster::DispatchOptions{.policy = *cluster.dispatch, .seed = Random64()};
  }
  options.cross_class_replay = cluster.cross_class_replay;
  options.secret = Random64();
  options.link_probes.emplace();
}

}  // namespace

Result<ClusterModel> StartClusterModel(const EngineFlags& flags, const std::string& chat_template,
                                       const ClusterFlags& cluster, const Clock& clock) {
  ClusterModel result;
  MR_ASSIGN_OR_RETURN(result.model, LoadModelText(flags, chat_template));
  LocalModel& model = *result.model;
  MR_ASSIGN_OR_RETURN(model::ModelDescription description, model::DescribeModel(model.path.folder));
  model.spec = description.spec;
  model.generation = std::move(description.generation);
  model.notes = std::move(description.notes);
  LogFolderNotes(model);
  model.block_size = flags.block_size;
  MR_ASSIGN_OR_RETURN(
      model.kv,
      LimitWorkersKv(flags, {.bytes_per_block = model.spec.KvBytesPerToken() * flags.block_size,
                             .model_max_len = model.spec.max_position}));
  model.device_name = "workers that join";
  MR_ASSIGN_OR_RETURN(cluster::ControllerHostOptions options, ControllerOptionsFor(flags, model));
  SetLayout(cluster, options.controller);
  MR_ASSIGN_OR_RETURN(const auto digests, WeightCacheOf(flags.weight_cache).Of(model.path.folder));
  sched::ResultBounds bounds{model.spec.vocab_size, model.spec.hidden_size};
  if (const auto& table = options.controller.token_table) {
    bounds.grammars = text::Grammars::Of(*table);
  }
  options.controller.scheduler.check_results = std::move(bounds);
  options.controller.identity.model_fingerprint = digests.fingerprint();
  options.controller.identity.kv_layout = cluster::KvLayoutName(model.spec);
  std::unique_ptr<ops::KeptPlan> kept;
  if (cluster.leading) {
    kept = std::make_unique<ops::KeptPlan>(
        cluster.leading, options.controller.identity.model_fingerprint, cluster.layout);
    MR_ASSIGN_OR_RETURN(auto applied, kept->Read());
    if (applied) {
      options.controller.plan = std::move(applied->plan);
      options.controller.node_names = std::move(applied->workers);
    }
  }
  std::unique_ptr<cluster::RequestJournal> journal;
  if (cluster.journal) {
    MR_ASSIGN_OR_RETURN(journal, OpenJournal(cluster, clock));
    options.first_request = journal->first_request();
    options.journal = journal->Hooks();
  }
  options.controller.store = cluster.leading ? cluster.leading->cluster_id() : "";
  if (cluster.leading) {
    options.leads = [leading = cluster.leading] { return leading->HoldsLease(); };
  }
  cluster::ControlServerOptions server;
  server.address = cluster.listen;
  server.security = cluster.security;
  MR_ASSIGN_OR_RETURN(
      auto served, cluster::ControllerProcess::Start(std::move(options), std::move(server), clock));
  if (journal) model.earlier = cluster::NewControllerRecovery(served->host(), *journal);
  result.server = served.get();
  cluster::ControllerHost& host = served->host();
  auto admin = std::make_unique<ControllerAdmin>(host, model.path.name, std::move(kept));
  result.admin = admin.get();
  model.cluster = std::move(admin);
  std::shared_ptr<ServedController> held(
      new ServedController{cluster.leading, std::move(journal), std::move(served)});
  held->DrainWhenLost();
  model.engine = {std::move(held), &host};
  return result;
}

void Accompany(ClusterModel& model, std::shared_ptr<void> companion, AdminAdditions additions) {
  model.admin->Add(std::move(additions));
  auto& engine = model.model->engine;
  cluster::Generator* inner = engine.get();
  std::shared_ptr<Accompanied> held(
      new Accompanied{std::move(engine), model.admin, std::move(companion)});
  engine = {std::move(held), inner};
}

}  // namespace millrace::apps
