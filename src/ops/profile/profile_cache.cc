#include "ops/profile/profile_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/version.h"

namespace millrace::ops {
namespace {

constexpr int kMeasurement = 1;  // grows when the same machine would give other numbers
constexpr size_t kKeyDigits = 24;

}  // namespace

std::string ProfileSubject::Key() const {
  std::string all = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", kMeasurement, Version(), device,
                                numeric_class, threads, DTypeName(dtype), DumpJson(config));
  if (cpu_quota) all += fmt::format("\n{}", *cpu_quota);
  return "profile-" + Hex(Sha256Of(all)).substr(0, kKeyDigits);
}

std::string DefaultCacheFolder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg == '/') return std::string(xdg) + "/millrace";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/millrace" : "";
}

Status CheckProfile(const cost::Profile& profile, const ModelSpec& spec) {
  if (profile.architecture != spec.architecture || profile.num_layers != spec.num_layers ||
      profile.dtype != DTypeName(spec.dtype)) {
    return InvalidArgument(fmt::format(
        "it is of {} ({}, {} layers, {}), but the model is {} with {} layers in {}",
        Printable(profile.model, 60), Printable(profile.architecture, 60), profile.num_layers,
        Printable(profile.dtype, 20), spec.architecture, spec.num_layers, DTypeName(spec.dtype)));
  }
  return cost::CheckPlausible(profile);
}

std::optional<cost::Profile> ProfileCache::Load(const std::string& key,
                                                const ModelSpec& spec) const {
  if (folder_.empty()) return std::nullopt;
  auto profile = cost::LoadProfile(PathOf(key));
  if (!profile.ok()) {
    if (profile.status().code() != StatusCode::kNotFound) {
      MR_LOG(warn, "{}; it will be measured again", profile.status().message());
    }
    return std::nullopt;
  }
  if (const Status fits = CheckProfile(*profile, spec); !fits.ok()) {
    MR_LOG(warn, "{}: {}; it will be measured again", PathOf(key), fits.message());
    return std::nullopt;
  }
  return std::move(*profile);
}

Status ProfileCache::Store(const std::string& key, const cost::Profile& profile) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  return WriteFileAtomically(PathOf(key), cost::FormatProfile(profile));
}

}  // namespace millrace::ops
