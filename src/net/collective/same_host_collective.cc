#include "net/collective/same_host_collective.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "net/collective/same_host_meeting.h"

namespace millrace::net {
namespace {

constexpr uint64_t kMagic = 0x316c6c6f4372724d;  // "MrrColl1"
constexpr uint32_t kVersion = 1;

class SameHostCollective : public SlotCollective {
 public:
  SameHostCollective(const Options& options, std::shared_ptr<void> memory, std::vector<Peer> peers)
      : SlotCollective(options, std::move(memory)), peers_(std::move(peers)) {}

 protected:
  Status CheckPeers() override {
    std::vector<pollfd> fds;
    for (const Peer& peer : peers_) fds.push_back({peer.socket.get(), POLLIN | POLLRDHUP, 0});
    if (poll(fds.data(), fds.size(), 0) <= 0) return OkStatus();
    for (size_t i = 0; i < fds.size(); ++i) {
      // Peers send nothing after the meeting, so any event means that the peer has ended.
      if (fds[i].revents == 0) continue;
      return Unavailable(fmt::format("rank {} of {}: the process of rank {} is gone", rank(),
                                     size(), peers_[i].rank));
    }
    return OkStatus();
  }

 private:
  const std::vector<Peer> peers_;
};

Status OutOfSharedMemory(size_t bytes) {
  return ResourceExhausted(fmt::format(
      "cannot allocate {} bytes of shared memory for a collective: {}", bytes, strerror(errno)));
}

Result<std::shared_ptr<void>> Map(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return OutOfSharedMemory(bytes);
  return std::shared_ptr<void>(data, [bytes](void* p) { munmap(p, bytes); });
}

Result<UniqueFd> MakeMemory(size_t bytes) {
  UniqueFd fd(memfd_create("millrace-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return OutOfSharedMemory(bytes);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return OutOfSharedMemory(bytes);
  }
  return fd;
}

void WriteHeader(const SameHostOptions& options, SlotHeader& header) {
  header.version = kVersion;
  header.size = static_cast<uint32_t>(options.size);
  header.slot_floats = options.slot_floats;
  header.incarnation = options.incarnation;
  header.magic.store(kMagic, std::memory_order_release);
}

// Checks that rank 0's memory is as this rank would have made it and cannot be truncated.
Status CheckMemory(const SameHostOptions& options, int fd, size_t bytes) {
  struct stat stat;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &stat) != 0 || static_cast<size_t>(stat.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return FailedPrecondition(fmt::format(
        "rank 0 of {} shares memory that is not a sealed file of {} bytes", options.size, bytes));
  }
  return OkStatus();
}

Status CheckHeader(const SameHostOptions& options, const SlotHeader& header) {
  if (header.magic.load(std::memory_order_acquire) == kMagic && header.version == kVersion &&
      header.size == static_cast<uint32_t>(options.size) &&
      header.slot_floats == options.slot_floats && header.incarnation == options.incarnation) {
    return OkStatus();
  }
  return FailedPrecondition(fmt::format(
      "rank 0 of {} shares memory of another version, size or incarnation", options.size));
}

SlotCollective::Options SlotOptions(const SameHostOptions& options) {
  return {options.rank, options.size, options.slot_floats, options.deadline};
}

Result<std::unique_ptr<Collective>> CreateGroup(const SameHostOptions& options, size_t bytes) {
  MR_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemory(bytes));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, Map(fd.get(), bytes));
  WriteHeader(options, *static_cast<SlotHeader*>(memory.get()));
  MR_ASSIGN_OR_RETURN(std::vector<Peer> peers, GatherRanks(options, fd.get()));
  return std::unique_ptr<Collective>(std::make_unique<SameHostCollective>(
      SlotOptions(options), std::move(memory), std::move(peers)));
}

Result<std::unique_ptr<Collective>> JoinGroup(const SameHostOptions& options, size_t bytes) {
  MR_ASSIGN_OR_RETURN(Invitation invitation, MeetRankZero(options));
  MR_RETURN_IF_ERROR(CheckMemory(options, invitation.memory.get(), bytes));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, Map(invitation.memory.get(), bytes));
  MR_RETURN_IF_ERROR(CheckHeader(options, *static_cast<SlotHeader*>(memory.get())));
  std::vector<Peer> peers;
  peers.push_back(std::move(invitation.rank_zero));
  return std::unique_ptr<Collective>(std::make_unique<SameHostCollective>(
      SlotOptions(options), std::move(memory), std::move(peers)));
}

}  // namespace

Result<std::unique_ptr<Collective>> JoinSameHost(const SameHostOptions& options) {
  MR_RETURN_IF_ERROR(CheckRank(options.rank, options.size));
  MR_CHECK(options.slot_floats > 0);
  if (options.size > 1 && options.meeting.empty()) {
    return InvalidArgument("ranks of one host need a meeting name");
  }
  const size_t bytes = SlotBytes(options.size, options.slot_floats);
  return options.rank == 0 ? CreateGroup(options, bytes) : JoinGroup(options, bytes);
}

}  // namespace millrace::net
