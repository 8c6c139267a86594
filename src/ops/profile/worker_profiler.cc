#include "ops/profile/worker_profiler.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/control_groups.h"
#include "base/log.h"
#include "model/config.h"
#include "model/describe.h"
#include "ops/profile/shape_profile.h"

namespace millrace::ops {
namespace {

constexpr Duration kIdleLookEvery = Duration::Millis(100);
constexpr Duration kOtherMeasures = Duration::Seconds(1);

}  // namespace

WorkerProfiler::WorkerProfiler(WorkerProfilerOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), cache_(options_.cache) {}

WorkerProfiler::~WorkerProfiler() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stops_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status WorkerProfiler::ReadModel() {
  MR_ASSIGN_OR_RETURN(Json config, model::ReadConfig(options_.folder));
  MR_ASSIGN_OR_RETURN(const model::ModelDescription described,
                      model::DescribeModel(options_.folder));
  spec_ = described.spec;
  subject_ = {std::move(config),      spec_.dtype,      options_.device,
              options_.numeric_class, options_.threads, ReadCpuQuota()};
  return OkStatus();
}

Result<std::unique_ptr<WorkerProfiler>> WorkerProfiler::Create(WorkerProfilerOptions options,
                                                               const Clock& clock) {
  std::unique_ptr<WorkerProfiler> profiler(new WorkerProfiler(std::move(options), clock));
  const Status model = profiler->ReadModel();
  const std::string& file = profiler->options_.file;
  if (!file.empty()) {
    auto profile = cost::LoadProfile(file);
    if (!profile.ok()) return profile.status().WithContext("--profile");
    const Status fits =
        model.ok() ? CheckProfile(*profile, profiler->spec_) : cost::CheckPlausible(*profile);
    if (!fits.ok()) return fits.WithContext(fmt::format("--profile {}", Printable(file)));
    profiler->known_ = std::move(*profile);
  } else if (model.ok()) {
    profiler->known_ = profiler->cache_.Load(profiler->subject_.Key(), profiler->spec_);
  } else {
    MR_LOG(info, "this worker has no profile: {}", model.message());
  }
  return profiler;
}

void WorkerProfiler::Start(cluster::WorkerHost& host) {
  host_ = &host;
  if (known_) return Give(*known_);
  if (!options_.measure || subject_.config.is_null()) return;
  if (cache_.folder().empty()) {
    MR_LOG(info, "this worker measures no profile: no folder to keep it in; give --profile-cache");
    return;
  }
  thread_ = std::thread([this] { Run(); });
}

void WorkerProfiler::Run() {
  const std::string key = subject_.Key();
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (!WaitUntilIdle()) return;
    const auto lock = cache_.Lock();
    if (!lock.ok() && lock.status().code() != StatusCode::kFailedPrecondition) {
      MR_LOG(warn, "this worker measures no profile: {}", lock.status().message());
      return;
    }
    // Another worker of this machine may have measured the same.
    if (const auto kept = cache_.Load(key, spec_)) return Give(*kept);
    if (!lock.ok()) {
      if (!Sleep(kOtherMeasures)) return;
      continue;
    }
    const Time began = clock_.Now();
    const auto profile = MeasureShape({.model = options_.model,
                                       .config = subject_.config,
                                       .dtype = subject_.dtype,
                                       .scratch = cache_.ScratchFolder(),
                                       .threads = options_.threads,
                                       .may_go_on = [this] { return MayGoOn(); }},
                                      clock_);
    if (profile.status().code() == StatusCode::kCancelled) continue;
    if (!profile.ok()) {
      MR_LOG(warn, "this worker has no profile: {}", profile.status().message());
      return;
    }
    MR_LOG(info, "measured a profile in {:.1f} s", (clock_.Now() - began).seconds());
    if (const Status kept = cache_.Store(key, *profile); !kept.ok()) {
      MR_LOG(warn, "the profile is not kept: {}", kept.message());
    }
    return Give(*profile);
  }
}

bool WorkerProfiler::Sleep(Duration duration) {
  MutexLock lock(mutex_);
  return !stops_.wait_for(lock, std::chrono::nanoseconds(duration.ns),
                          [this]() MR_REQUIRES(mutex_) { return stopping_; });
}

bool WorkerProfiler::WaitUntilIdle() {
  while (!host_->welcomed() || host_->IdleFor() < kQuiet) {
    if (!Sleep(kIdleLookEvery)) return false;
  }
  return Sleep({});
}

bool WorkerProfiler::MayGoOn() {
  const Time end = clock_.Now() + kPauseMax;
  while (host_->IdleFor() < kQuiet) {
    if (clock_.Now() >= end || !Sleep(kIdleLookEvery)) return false;
  }
  return Sleep({});
}

void WorkerProfiler::Give(const cost::Profile& profile) {
  host_->SetProfile({cost::FormatProfileLine(profile)});
}

}  // namespace millrace::ops
