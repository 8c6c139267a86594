#include "ops/process/reloader.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "base/log.h"

namespace millrace::ops {
namespace {

// "" for a file that is not there.
std::string StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {} {} {}.{} {}.{}", info.st_dev, info.st_ino, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
}

}  // namespace

Reloader::Reloader(std::vector<ReloadedFiles> files, Duration look_every)
    : files_(std::move(files)), look_every_(look_every) {
  for (const ReloadedFiles& each : files_) seen_.push_back(StampsOf(each));
  thread_ = std::thread([this] { Run(); });
}

Reloader::~Reloader() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_all();
  thread_.join();
}

void Reloader::ReloadNow() {
  {
    MutexLock lock(mutex_);
    asked_ = true;
  }
  woken_.notify_all();
}

Reloader::Stamps Reloader::StampsOf(const ReloadedFiles& files) {
  Stamps stamps;
  for (const std::string& path : files.paths) stamps.push_back(StampOf(path));
  return stamps;
}

void Reloader::Run() {
  while (true) {
    bool all = false;
    {
      MutexLock lock(mutex_);
      woken_.wait_for(lock, std::chrono::nanoseconds(look_every_.ns),
                      [this]() MR_REQUIRES(mutex_) { return stopping_ || asked_; });
      if (stopping_) return;
      all = std::exchange(asked_, false);
    }
    Look(all);
  }
}

void Reloader::Look(bool all) {
  for (size_t i = 0; i < files_.size(); ++i) {
    Stamps now = StampsOf(files_[i]);
    if (!all && now == seen_[i]) continue;
    seen_[i] = std::move(now);  // before reading: what changes meanwhile is read again
    const Status status = files_[i].reload();
    if (status.ok()) {
      MR_LOG(info, "{}: read again", files_[i].what);
    } else {
      MR_LOG(warn, "{}: {}; what was read before stays in force", files_[i].what,
             Printable(status.message(), 1024));
    }
  }
}

}  // namespace millrace::ops
