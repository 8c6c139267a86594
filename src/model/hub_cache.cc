#include "model/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "model/config.h"
#include "model/weight_files.h"

namespace millrace::model {
namespace {

constexpr size_t kRefBytesMax = 256;
constexpr size_t kRevisionBytesMax = 255;
constexpr size_t kHubNameBytesMax = 200;
constexpr size_t kCommitDigits = 40;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// A path of names, none of them empty, hidden or "..".
bool IsPathOfNames(std::string_view text) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (part.empty() || part.front() == '.' || part.find("..") != std::string_view::npos ||
        !std::ranges::all_of(part, IsNameByte)) {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

bool IsFileOf(const std::string& folder, std::string_view name) {
  std::error_code error;
  return std::filesystem::is_regular_file(std::filesystem::path(folder) / name, error);
}

std::optional<std::string> Given(const Environment& environment, const std::string& name) {
  const auto value = environment(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::string FolderName(std::string_view name) {
  const size_t slash = name.find('/');
  return fmt::format("models--{}--{}", name.substr(0, slash), name.substr(slash + 1));
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool IsHubName(std::string_view model) {
  return model.size() <= kHubNameBytesMax && std::ranges::count(model, '/') == 1 &&
         IsPathOfNames(model);
}

bool IsRevision(std::string_view text) {
  return text.size() <= kRevisionBytesMax && IsPathOfNames(text);
}

bool IsCommit(std::string_view text) {
  return text.size() == kCommitDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string HubHome(const Environment& environment) {
  if (const auto home = Given(environment, "HF_HOME")) return *home;
  if (const auto cache = Given(environment, "XDG_CACHE_HOME")) return *cache + "/huggingface";
  return environment("HOME").value_or("") + "/.cache/huggingface";
}

std::string HubCache(const Environment& environment) {
  if (const auto cache = Given(environment, "HF_HUB_CACHE")) return *cache;
  return HubHome(environment) + "/hub";
}

HubRepository RepositoryOf(const std::string& name, const Environment& environment) {
  return {.name = name, .cache = HubCache(environment)};
}

std::string HubRepository::folder() const { return fmt::format("{}/{}", cache, FolderName(name)); }

std::string HubRepository::Blob(std::string_view etag) const {
  return fmt::format("{}/blobs/{}", folder(), etag);
}

std::string HubRepository::Lock(std::string_view etag) const {
  return fmt::format("{}/.locks/{}/{}.lock", cache, FolderName(name), etag);
}

std::string HubRepository::Ref(std::string_view revision) const {
  return fmt::format("{}/refs/{}", folder(), revision);
}

std::string HubRepository::Snapshot(std::string_view commit) const {
  return fmt::format("{}/snapshots/{}", folder(), commit);
}

std::string HubRepository::SnapshotOf(const std::string& revision) const {
  const auto ref = ReadFile(Ref(revision), kRefBytesMax);
  if (!ref.ok()) return Snapshot(revision);
  std::string_view commit = *ref;
  while (commit.ends_with('\n') || commit.ends_with(' ')) commit.remove_suffix(1);
  const bool plain = IsRevision(commit) && commit.find('/') == std::string_view::npos;
  return Snapshot(plain ? commit : revision);
}

std::vector<std::string> MissingFiles(const std::string& snapshot) {
  std::vector<std::string> missing;
  const auto want = [&](std::string_view name) {
    if (!IsFileOf(snapshot, name)) missing.emplace_back(name);
  };
  want(kConfigFile);
  want("tokenizer.json");
  const auto weights = WeightFileNames(snapshot);
  if (!weights.ok()) {
    missing.emplace_back(kSingleFile);
    return missing;
  }
  for (const std::string& name : *weights) want(name);
  return missing;
}

}  // namespace millrace::model
