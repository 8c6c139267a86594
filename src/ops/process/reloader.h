// Reloader: reads files again when they change, and when it is told to, on a thread of its own. A
// change is another file behind the path (also through links, as orchestrators mount secrets), or
// another size or time of change. When reading fails, the log says why and what is in force stays.
//
// Owned by the command. Any thread may call ReloadNow.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace millrace::ops {

struct ReloadedFiles {
  std::string what;                // "API keys", for the log
  std::vector<std::string> paths;  // any of them
  std::function<Status()> reload;  // on the reloader's thread
};

class Reloader {
 public:
  // The files as they are now count as read.
  explicit Reloader(std::vector<ReloadedFiles> files, Duration look_every = Duration::Seconds(2));
  ~Reloader();

  // Reads all files again soon, changed or not.
  void ReloadNow();

 private:
  using Stamps = std::vector<std::string>;
  static Stamps StampsOf(const ReloadedFiles& files);
  void Run();
  void Look(bool all);

  const std::vector<ReloadedFiles> files_;
  const Duration look_every_;
  std::vector<Stamps> seen_;  // of each; the thread's
  Mutex mutex_;
  CondVar woken_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool asked_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::ops
