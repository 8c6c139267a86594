// WorkerProfiler: gives a worker its profile: from a file, from the cache, or else measured on a
// thread of its own while the worker has nothing to compute. A request that comes meanwhile waits
// for at most the step that is being measured; the measurement pauses until the worker has been
// idle for kQuiet, or is given up and begun again.
//
// Owned by the worker's command; one thread. The host must outlive it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/worker/worker_host.h"
#include "ops/profile/profile_cache.h"

namespace millrace::ops {

struct WorkerProfilerOptions {
  std::string file;   // --profile; "": none
  std::string cache;  // the folder; "": nothing is kept or measured
  bool measure = true;
  std::string model;   // its name, for the profile
  std::string folder;  // of the model
  std::string device, numeric_class;
  int threads = 1;
};

class WorkerProfiler {
 public:
  static constexpr Duration kQuiet = Duration::Seconds(2);
  static constexpr Duration kPauseMax = Duration::Seconds(10);
  static constexpr int kAttemptsMax = 1000;

  // Reads the file, if one is given: the error has its name.
  static Result<std::unique_ptr<WorkerProfiler>> Create(WorkerProfilerOptions options,
                                                        const Clock& clock);
  ~WorkerProfiler();

  // Gives `host` the profile that is known, or begins to measure one.
  void Start(cluster::WorkerHost& host);

 private:
  WorkerProfiler(WorkerProfilerOptions options, const Clock& clock);
  Status ReadModel();
  void Run();
  // False: the worker stops.
  bool WaitUntilIdle();
  // False: the worker stops, or has been busy for kPauseMax.
  bool MayGoOn();
  bool Sleep(Duration duration);  // false: the worker stops
  void Give(const cost::Profile& profile);

  const WorkerProfilerOptions options_;
  const Clock& clock_;
  const ProfileCache cache_;
  ProfileSubject subject_;
  ModelSpec spec_;
  std::optional<cost::Profile> known_;
  cluster::WorkerHost* host_ = nullptr;

  Mutex mutex_;
  CondVar stops_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::ops
