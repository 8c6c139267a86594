// DrillCluster: a cluster of this machine's own processes that a drill disturbs: a controller, and
// workers that get notice when a file appears. Whoever dies is started again.
//
// Owned by a drill; one thread. The destructor ends all processes and removes their files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cluster/admin_client.h"
#include "apps/common/private_folder.h"
#include "apps/drill/process_log.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http/http_client.h"
#include "net/url.h"
#include "ops/process/supervisor.h"

namespace millrace::apps {

struct DrillClusterOptions {
  std::string model;  // a folder
  int workers = 3;
  std::optional<uint16_t> port;  // of the HTTP API; unset: a free one
  int max_model_len = 0;         // tokens of a sequence
  int max_num_seqs = 0;
  int64_t kv_bytes = 0;  // of each worker
};

// One process that serves the whole model: it says what is right.
class LoneServer {
 public:
  static Result<std::unique_ptr<LoneServer>> Start(const DrillClusterOptions& options,
                                                   ProcessLog& log);
  ~LoneServer();
  const net::Url& url() const { return url_; }
  // It has ended by itself.
  bool failed() const;

 private:
  LoneServer() = default;
  net::Url url_;
  std::unique_ptr<ops::Supervisor> process_;
};

class DrillCluster {
 public:
  // Processes start; nothing serves yet. `folder` and `log` must outlive it.
  static Result<std::unique_ptr<DrillCluster>> Start(const DrillClusterOptions& options,
                                                     const PrivateFolder& folder, ProcessLog& log);
  ~DrillCluster();

  const net::Url& url() const { return url_; }
  // GET /cluster/status. kUnavailable while the controller is not there.
  Result<Json> Describe();
  // The text of /metrics; empty while the controller is not there.
  std::string Metrics();
  // A child that ended for good, as a sentence.
  std::optional<std::string> Dead() const;

  Status GiveNotice(const std::string& worker, Duration ends_in);
  void WithdrawNotice(const std::string& worker);
  // SIGKILL; it is started again after a second. False: it does not run.
  bool Kill(const std::string& worker) { return workers_->Signal(worker, kKillSignal); }
  bool KillController() { return controller_->Signal(kControllerName, kKillSignal); }

 private:
  static constexpr int kKillSignal = 9;
  static constexpr const char* kControllerName = "controller";
  explicit DrillCluster(const PrivateFolder& folder) : folder_(folder) {}
  std::string NoticeFile(const std::string& worker) const;

  const PrivateFolder& folder_;
  net::Url url_;
  AdminFlags admin_flags_;
  std::unique_ptr<AdminClient> admin_;
  std::unique_ptr<net::HttpClient> http_;
  std::unique_ptr<ops::Supervisor> controller_, workers_;
};

}  // namespace millrace::apps
