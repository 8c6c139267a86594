// ProfileCache: profiles of model shapes on this machine, in a folder that the machine's workers
// share. Values and files; any thread.
#pragma once

#include <optional>
#include <string>

#include "base/folder_lock.h"
#include "base/json.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/profile.h"

namespace millrace::ops {

// What a profile depends on. Profiles with equal ones replace each other.
struct ProfileSubject {
  Json config;  // the model's config.json
  DType dtype = DType::kBF16;
  std::string device;  // as tensor::CpuName: processor, instruction set, threads
  std::string numeric_class;
  int threads = 0;
  std::optional<double> cpu_quota = {};  // of the control group

  std::string Key() const;  // also of this release
};

// Of XDG_CACHE_HOME, else of HOME; "" if there is neither.
std::string DefaultCacheFolder();

// kInvalidArgument: it is of another model, or cannot be of a real machine.
Status CheckProfile(const cost::Profile& profile, const ModelSpec& spec);

class ProfileCache {
 public:
  // The folder need not exist. "": nothing is kept.
  explicit ProfileCache(std::string folder) : folder_(std::move(folder)) {}

  // None if there is no such profile or the file is damaged, which is logged.
  std::optional<cost::Profile> Load(const std::string& key, const ModelSpec& spec) const;
  Status Store(const std::string& key, const cost::Profile& profile) const;

  // One process per folder measures at a time. kFailedPrecondition: another one does.
  Result<FolderLock> Lock() const { return FolderLock::Take(folder_); }
  // For the random weights; only for the holder of the lock.
  std::string ScratchFolder() const { return folder_ + "/scratch"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string PathOf(const std::string& key) const { return folder_ + "/" + key + ".json"; }

  const std::string folder_;
};

}  // namespace millrace::ops
