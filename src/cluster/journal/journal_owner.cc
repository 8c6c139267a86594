#include "cluster/journal/journal_owner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

namespace millrace::cluster {
namespace {

constexpr std::string_view kOwnerPrefix = "owner-";
constexpr size_t kClusterBytesMax = 64;

struct Found {
  std::string path;
  JournalOwner owner;
};

std::string PathOf(const std::string& folder, const JournalOwner& owner) {
  return fmt::format("{}/{}{}-{}", folder, kOwnerPrefix, owner.cluster, owner.term.value());
}

Result<std::vector<Found>> Owners(const std::string& folder) {
  std::vector<Found> owners;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const size_t dash = name.rfind('-');
    if (!name.starts_with(kOwnerPrefix) || dash < kOwnerPrefix.size()) continue;
    uint64_t term = 0;
    const auto parsed = std::from_chars(name.data() + dash + 1, name.data() + name.size(), term);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) continue;
    owners.push_back({it->path().string(),
                      {name.substr(kOwnerPrefix.size(), dash - kOwnerPrefix.size()), Term(term)}});
  }
  if (error) return Unavailable(fmt::format("cannot read {}: {}", folder, error.message()));
  return owners;
}

Status CheckOwner(const JournalOwner& owner) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (!owner.cluster.empty() && owner.cluster.size() <= kClusterBytesMax &&
      std::all_of(owner.cluster.begin(), owner.cluster.end(), fits)) {
    return OkStatus();
  }
  return InvalidArgument("invalid cluster name: use 1 to 64 lower-case letters and digits");
}

// Whether a leader of our cluster with a lower term owns the folder. kFailedPrecondition: a leader
// with a higher term owned it.
Result<bool> OwnedByPredecessor(const std::vector<Found>& owners, const JournalOwner& owner) {
  bool ours = false;
  for (const Found& found : owners) {
    if (found.owner.cluster != owner.cluster) continue;
    if (found.owner.term > owner.term) {
      return FailedPrecondition(
          fmt::format("the leader of term {} already owned the journal; this is term {}",
                      found.owner.term.value(), owner.term.value()));
    }
    ours = ours || found.owner.term < owner.term;
  }
  return ours;
}

Status Remove(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return OkStatus();
  return Unavailable(fmt::format("cannot remove {}: {}", path, std::strerror(errno)));
}

Status Make(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(fmt::format("cannot create {}: {}", path, std::strerror(errno)));
  ::close(fd);
  return OkStatus();
}

}  // namespace

// If there are two successors at once, each creates its owner file and then lists the others. So
// the one with the lower term finds the other's file, or its own file is found and removed.
Result<JournalOwnership> JournalOwnership::Take(const std::string& folder,
                                                const std::optional<JournalOwner>& owner) {
  Result<FolderLock> lock = FolderLock::Take(folder);
  const bool held = lock.status().code() == StatusCode::kFailedPrecondition;
  if (!lock.ok() && (!held || !owner)) return lock.status();
  MR_ASSIGN_OR_RETURN(std::vector<Found> owners, Owners(folder));
  std::string mine;
  if (owner) {
    MR_RETURN_IF_ERROR(CheckOwner(*owner));
    MR_ASSIGN_OR_RETURN(const bool succeeds, OwnedByPredecessor(owners, *owner));
    if (held && !succeeds) return lock.status();
    mine = PathOf(folder, *owner);
    MR_RETURN_IF_ERROR(Make(mine));
    MR_ASSIGN_OR_RETURN(owners, Owners(folder));
    if (auto still = OwnedByPredecessor(owners, *owner); !still.ok()) {
      MR_RETURN_IF_ERROR(Remove(mine));
      return still.status();
    }
  }
  for (const Found& found : owners) {
    const bool before = owner && found.owner.cluster == owner->cluster;
    if (found.path != mine && (before || !held)) MR_RETURN_IF_ERROR(Remove(found.path));
  }
  if (held) lock = FolderLock::TakeAway(folder);
  if (!lock.ok()) return lock.status();
  return JournalOwnership(*std::move(lock), std::move(mine));
}

// Opens the file instead of looking it up: only then does a network file system ask its server.
Status JournalOwnership::Check() const {
  if (file_.empty()) return OkStatus();
  const int fd = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ::close(fd);
    return OkStatus();
  }
  if (errno == ENOENT) return Unavailable("a later leader has taken over the journal");
  return Unavailable(fmt::format("cannot open {}: {}", file_, std::strerror(errno)));
}

}  // namespace millrace::cluster
