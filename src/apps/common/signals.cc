#include "apps/common/signals.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

namespace millrace::apps {
namespace {

// SIGUSR2 ends the watcher.
sigset_t WatchedSignals(Hangup hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR2);
  if (hangup == Hangup::kReloads) sigaddset(&set, SIGHUP);
  return set;
}

// Calls only what a signal handler may call.
void OnBusError(int) {
  constexpr std::string_view kMessage =
      "\nmillrace: a model file became shorter, or could not be read, while it was in use; replace "
      "model files by renaming a new folder into place, then start again\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(1);
}

}  // namespace

StopSignals::StopSignals(Hangup hangup) : hangup_(hangup) {
  const sigset_t set = WatchedSignals(hangup);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  watcher_ = std::thread([this] { Watch(); });
}

StopSignals::~StopSignals() {
  pthread_kill(watcher_.native_handle(), SIGUSR2);
  watcher_.join();
}

int StopSignals::count() const {
  MutexLock lock(mutex_);
  return count_;
}

void StopSignals::Wait() {
  MutexLock lock(mutex_);
  came_.wait(lock, [this]() MR_REQUIRES(mutex_) { return count_ > waited_; });
  ++waited_;
}

void StopSignals::OnSignal(std::function<void(int)> callback) {
  MutexLock lock(mutex_);
  callback_ = std::move(callback);
}

void StopSignals::OnHangup(std::function<void()> callback) {
  MutexLock lock(mutex_);
  on_hangup_ = std::move(callback);
}

void StopSignals::Reload() {
  MutexLock lock(mutex_);
  if (on_hangup_) on_hangup_();
}

void StopSignals::Watch() {
  const sigset_t set = WatchedSignals(hangup_);
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal == SIGUSR2) return;
    if (signal == SIGHUP) {
      Reload();
      continue;
    }
    std::function<void(int)> callback;
    int count = 0;
    {
      MutexLock lock(mutex_);
      count = ++count_;
      callback = callback_;
    }
    came_.notify_all();
    if (callback) callback(count);
  }
}

void ExplainLostModelFiles() {
  struct sigaction action {};
  action.sa_handler = OnBusError;
  sigaction(SIGBUS, &action, nullptr);
}

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace millrace::apps
