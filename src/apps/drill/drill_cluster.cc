#include "apps/drill/drill_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "net/listener.h"

namespace millrace::apps {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr int kMetricsOk = 200;
constexpr int kStagesOfDrill = 2;
// A replacement takes a moment, as a new machine does, so that the others have to do without.
constexpr Duration kReplacementPause = Duration::Seconds(1);

std::string ThisProgram() { return std::filesystem::read_symlink("/proc/self/exe"); }

// A port that nobody listens on: `port`, or any. Somebody may take it before it is used; the
// process that then fails says so.
Result<uint16_t> FreePort(uint16_t port = 0) {
  MR_ASSIGN_OR_RETURN(const auto listener, net::Listener::Start(kLoopback, port, [](auto&&...) {}));
  return listener->port();
}

net::Url UrlOfPort(uint16_t port) { return {.host = kLoopback, .port = port}; }

ops::SupervisorOptions Restarting(ProcessLog& log) {
  ops::SupervisorOptions options;
  options.pause_first = options.pause_most = kReplacementPause;
  options.on_line = [&log](std::string_view name, std::string_view line) { log.Add(name, line); };
  return options;
}

// One that dies whenever it starts will not serve.
constexpr int kStartsBeforeHopeless = 6;

std::optional<std::string> DeadIn(const ops::Supervisor& supervisor) {
  for (const ops::ChildStatus& child : supervisor.Describe()) {
    if (!child.stays_down && child.starts < kStartsBeforeHopeless) continue;
    return fmt::format("{} exited with {}", child.name, child.last_exit.value_or(0));
  }
  return std::nullopt;
}

std::vector<std::string> EngineWords(const DrillClusterOptions& options) {
  return {"--max-model-len", std::to_string(options.max_model_len), "--max-num-seqs",
          std::to_string(options.max_num_seqs), "--no-enable-prefix-caching"};
}

ops::ChildSpec ControllerSpec(const DrillClusterOptions& options, const std::string& name,
                              uint16_t port, const std::string& joins, const std::string& folder,
                              const std::string& token) {
  // A worker is spare, so that there is a place for what the others lose.
  const int stages = options.workers > kStagesOfDrill ? kStagesOfDrill : 1;
  const int pipelines = std::max(1, (options.workers - 1) / stages);
  ops::ChildSpec spec{
      .name = name,
      .argv = {ThisProgram(), "serve", options.model, "--port", std::to_string(port), "--cluster",
               "sqlite:" + folder + "/state", "--listen", joins, "--token", token,
               "--pipeline-parallel-size", std::to_string(stages), "--data-parallel-size",
               std::to_string(pipelines), "--resume-grace", "60", "--shutdown-timeout", "1"}};
  for (std::string& word : EngineWords(options)) spec.argv.push_back(std::move(word));
  return spec;
}

ops::ChildSpec WorkerSpec(const DrillClusterOptions& options, const std::string& name,
                          const std::string& joins, const std::string& token,
                          const std::string& notice_file) {
  return {
      .name = name,
      .argv = {ThisProgram(), "worker", options.model, "--join", joins, "--token", token, "--name",
               name, "--threads", "1", "--max-model-len", std::to_string(options.max_model_len),
               "--kv-cache-memory", std::to_string(options.kv_bytes), "--notice-source",
               "file:" + notice_file, "--no-measure-profile"}};
}

}  // namespace

Result<std::unique_ptr<LoneServer>> LoneServer::Start(const DrillClusterOptions& options,
                                                      ProcessLog& log) {
  std::unique_ptr<LoneServer> server(new LoneServer());
  MR_ASSIGN_OR_RETURN(const uint16_t port, FreePort());
  server->url_ = UrlOfPort(port);
  ops::ChildSpec spec{
      .name = "undisturbed",
      .argv = {ThisProgram(), "serve", options.model, "--port", std::to_string(port),
               "--kv-cache-memory", std::to_string(options.kv_bytes)}};
  for (std::string& word : EngineWords(options)) spec.argv.push_back(std::move(word));
  MR_ASSIGN_OR_RETURN(server->process_, ops::Supervisor::Start(Restarting(log), {std::move(spec)}));
  return server;
}

LoneServer::~LoneServer() {
  if (!process_) return;
  process_->BeginStop();
  process_->Wait();
}

bool LoneServer::failed() const {
  const ops::ChildStatus status = process_->Describe().front();
  return status.last_exit.has_value();
}

Result<std::unique_ptr<DrillCluster>> DrillCluster::Start(const DrillClusterOptions& options,
                                                          const PrivateFolder& folder,
                                                          ProcessLog& log) {
  std::unique_ptr<DrillCluster> cluster(new DrillCluster(folder));
  const auto free_port = FreePort(options.port.value_or(0));
  if (!free_port.ok()) return free_port.status().WithContext("--port");
  const uint16_t port = *free_port;
  MR_ASSIGN_OR_RETURN(const uint16_t join_port, FreePort());
  cluster->url_ = UrlOfPort(port);
  cluster->admin_flags_.base_url = cluster->url_.ToString();
  MR_ASSIGN_OR_RETURN(AdminClient admin, AdminClient::Create(cluster->admin_flags_));
  cluster->admin_ = std::make_unique<AdminClient>(std::move(admin));
  MR_ASSIGN_OR_RETURN(cluster->http_, net::HttpClient::Start({}));
  MR_ASSIGN_OR_RETURN(const std::string secret, NewClusterToken());
  MR_ASSIGN_OR_RETURN(const std::string token, folder.WriteSecret("cluster.token", secret));
  const std::string joins = fmt::format("{}:{}", kLoopback, join_port);
  MR_ASSIGN_OR_RETURN(
      cluster->controller_,
      ops::Supervisor::Start(Restarting(log), {ControllerSpec(options, kControllerName, port, joins,
                                                              folder.path(), token)}));
  std::vector<ops::ChildSpec> workers;
  for (int i = 0; i < options.workers; ++i) {
    const std::string name = fmt::format("worker-{}", i);
    workers.push_back(WorkerSpec(options, name, joins, token, cluster->NoticeFile(name)));
  }
  MR_ASSIGN_OR_RETURN(cluster->workers_,
                      ops::Supervisor::Start(Restarting(log), std::move(workers)));
  return cluster;
}

// The workers first: nobody needs their KV any more. The controller removes its admin socket.
DrillCluster::~DrillCluster() {
  if (workers_) {
    workers_->Kill();
    workers_->Wait();
  }
  if (controller_) {
    controller_->BeginStop();
    controller_->Wait();
  }
}

Result<Json> DrillCluster::Describe() { return admin_->Get("/cluster/status"); }

std::string DrillCluster::Metrics() {
  net::HttpCall call;
  call.url = url_.Join("/metrics");
  auto response = http_->Call(std::move(call));
  if (!response.ok() || response->status != kMetricsOk) return "";
  return std::move(response->body);
}

std::optional<std::string> DrillCluster::Dead() const {
  if (auto dead = DeadIn(*controller_)) return dead;
  return DeadIn(*workers_);
}

std::string DrillCluster::NoticeFile(const std::string& worker) const {
  return folder_.path() + "/notice-" + worker;
}

Status DrillCluster::GiveNotice(const std::string& worker, Duration ends_in) {
  return WriteFileAtomically(NoticeFile(worker), fmt::format("{:.0f}s\n", ends_in.seconds()));
}

void DrillCluster::WithdrawNotice(const std::string& worker) {
  std::error_code ignored;
  std::filesystem::remove(NoticeFile(worker), ignored);
}

}  // namespace millrace::apps
