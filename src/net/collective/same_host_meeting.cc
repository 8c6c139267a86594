#include "net/collective/same_host_meeting.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/sha256.h"

namespace millrace::net {
namespace {

constexpr uint32_t kProtocol = 1;
// Limit of connections that have not identified themselves; more are refused.
constexpr size_t kStrangersMax = 32;
// How often an early rank tries to reach rank 0.
constexpr Duration kRetryEvery = Duration::Millis(5);
// How often a waiting rank asks whether it is still wanted.
constexpr Duration kWantedEvery = Duration::Millis(50);

using Digest = Sha256::Digest;

struct Hello {
  uint32_t protocol = kProtocol;
  int32_t rank = 0, size = 0;
  uint32_t reserved = 0;
  uint64_t incarnation = 0, slot_floats = 0;
  Digest proof = {};
};

enum class Verdict : uint32_t { kWelcome = 1, kStale, kOtherSize, kTwice, kOtherProtocol };

struct Answer {
  uint32_t protocol = kProtocol;
  Verdict verdict = Verdict::kWelcome;
};

Time Now() { return SteadyClock().Now(); }

Digest Hash(std::string_view purpose, const std::string& meeting) {
  const std::string text = fmt::format("millrace collective {} {}", purpose, meeting);
  return Sha256Of(text);
}

struct Address {
  sockaddr_un name = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Address AddressOf(const std::string& meeting) {
  const Digest digest = Hash("address", meeting);
  const std::string text =
      fmt::format("millrace-{:02x}", fmt::join(digest.begin(), digest.begin() + 16, ""));
  Address address;
  address.name.sun_family = AF_UNIX;
  // The first byte stays zero, which makes the name abstract.
  std::copy(text.begin(), text.end(), address.name.sun_path + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

// Whether the other end belongs to this user.
bool IsOurs(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

// The timeout of a poll that waits until `end`, in milliseconds.
int SliceUntil(Time end) {
  const int64_t ms = (end - Now()).ns / 1'000'000 + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, kWantedEvery.ns / 1'000'000));
}

Status CheckWanted(const SameHostOptions& options) {
  if (!options.wanted || options.wanted()) return OkStatus();
  return Cancelled(fmt::format("rank {} of {} is no longer needed", options.rank, options.size));
}

bool IsGone(int socket) {
  pollfd fd{socket, POLLRDHUP, 0};
  return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Status Errno(const char* what) { return Unavailable(fmt::format("{}: {}", what, strerror(errno))); }

// Sends an answer and, if given, the descriptor `memory`.
Status SendAnswer(int socket, Answer answer, std::optional<int> memory) {
  iovec part{&answer, sizeof answer};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (memory) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &*memory, sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof answer) return OkStatus();
  return Errno("cannot reply to a rank");
}

Result<UniqueFd> ReceiveAnswer(int socket, Answer& answer) {
  iovec part{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  UniqueFd memory;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got >= 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    memory = UniqueFd(fd);
  }
  if (got != sizeof answer) return Unavailable("rank 0 disconnected before all ranks had joined");
  return memory;
}

// Rank 0's side of the meeting.
class Host {
 public:
  Host(const SameHostOptions& options) : options_(options), proof_(Hash("proof", options.meeting)) {
    ranks_.resize(static_cast<size_t>(options.size));
  }

  Status Listen() {
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const Address address = AddressOf(options_.meeting);
    if (!listener_.valid() || bind(listener_.get(), address.get(), address.length) != 0 ||
        listen(listener_.get(), kStrangersMax) != 0) {
      return errno == EADDRINUSE
                 ? FailedPrecondition("another rank 0 uses this collective's meeting name")
                 : Errno("cannot open the meeting socket");
    }
    return OkStatus();
  }

  Status AwaitAll(Time end) {
    while (!Complete()) {
      if (Now() >= end) return Missing();
      MR_RETURN_IF_ERROR(CheckWanted(options_));
      std::vector<pollfd> fds = {{listener_.get(), POLLIN, 0}};
      for (const UniqueFd& stranger : strangers_) fds.push_back({stranger.get(), POLLIN, 0});
      poll(fds.data(), fds.size(), SliceUntil(end));
      std::vector<UniqueFd> silent;
      for (size_t i = 0; i < strangers_.size(); ++i) {
        if (fds[i + 1].revents != 0) {
          Hear(std::move(strangers_[i]));
        } else {
          silent.push_back(std::move(strangers_[i]));
        }
      }
      strangers_ = std::move(silent);
      if (fds[0].revents != 0) Accept();
    }
    return OkStatus();
  }

  Result<std::vector<Peer>> Invite(int memory) {
    std::vector<Peer> peers;
    for (int r = 1; r < options_.size; ++r) {
      UniqueFd& socket = ranks_[static_cast<size_t>(r)];
      MR_RETURN_IF_ERROR(SendAnswer(socket.get(), {}, memory));
      peers.push_back({r, std::move(socket)});
    }
    return peers;
  }

 private:
  void Accept() {
    UniqueFd stranger(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!stranger.valid() || !IsOurs(stranger.get()) || strangers_.size() >= kStrangersMax) return;
    strangers_.push_back(std::move(stranger));
  }

  void Hear(UniqueFd stranger) {
    Hello hello;
    const ssize_t got = recv(stranger.get(), &hello, sizeof hello, MSG_DONTWAIT);
    if (got != sizeof hello || hello.proof != proof_) return;  // not a rank of this group
    const Verdict verdict = Judge(hello);
    if (verdict == Verdict::kWelcome) {
      ranks_[static_cast<size_t>(hello.rank)] = std::move(stranger);
    } else {
      (void)SendAnswer(stranger.get(), {kProtocol, verdict}, std::nullopt).ok();
    }
  }

  Verdict Judge(const Hello& hello) const {
    if (hello.protocol != kProtocol) return Verdict::kOtherProtocol;
    if (hello.incarnation != options_.incarnation) return Verdict::kStale;
    if (hello.size != options_.size || hello.slot_floats != options_.slot_floats) {
      return Verdict::kOtherSize;
    }
    if (hello.rank <= 0 || hello.rank >= options_.size) return Verdict::kTwice;
    const UniqueFd& known = ranks_[static_cast<size_t>(hello.rank)];
    // A rank that died while it waited may be replaced.
    return known.valid() && !IsGone(known.get()) ? Verdict::kTwice : Verdict::kWelcome;
  }

  bool Complete() const {
    return std::all_of(ranks_.begin() + 1, ranks_.end(),
                       [](const UniqueFd& fd) { return fd.valid(); });
  }

  Status Missing() const {
    std::string missing;
    for (int r = 1; r < options_.size; ++r) {
      if (ranks_[static_cast<size_t>(r)].valid()) continue;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    }
    return Unavailable(fmt::format("of {} ranks on this host, {} did not join within {:.3g} s",
                                   options_.size, missing, options_.join_within.seconds()));
  }

  const SameHostOptions& options_;
  const Digest proof_;
  UniqueFd listener_;
  std::vector<UniqueFd> strangers_;
  std::vector<UniqueFd> ranks_;  // by rank; rank 0's is empty
};

Status VerdictStatus(const SameHostOptions& options, const Answer& answer) {
  const auto turned_away = [&](std::string_view why) {
    return FailedPrecondition(
        fmt::format("rank 0 refused rank {} of {}: {}", options.rank, options.size, why));
  };
  if (answer.protocol != kProtocol) return turned_away("it uses another protocol version");
  switch (answer.verdict) {
    case Verdict::kWelcome: return OkStatus();
    case Verdict::kStale: return turned_away("it belongs to another incarnation of the group");
    case Verdict::kOtherSize: return turned_away("its group has another size");
    case Verdict::kTwice: return turned_away("this rank has already joined");
    case Verdict::kOtherProtocol: return turned_away("it uses another protocol version");
  }
  return turned_away("unknown reason");
}

// Connects to rank 0 as soon as it listens.
Result<UniqueFd> Connect(const SameHostOptions& options, Time end) {
  const Address address = AddressOf(options.meeting);
  for (;;) {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return Errno("cannot create a socket");
    if (connect(fd.get(), address.get(), address.length) == 0) return fd;
    // EAGAIN: the queue of rank 0 is full.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) return Errno("rank 0");
    if (Now() >= end) {
      return Unavailable(fmt::format("rank 0 of {} did not listen on this host within {:.3g} s",
                                     options.size, options.join_within.seconds()));
    }
    MR_RETURN_IF_ERROR(CheckWanted(options));
    poll(nullptr, 0, static_cast<int>(kRetryEvery.millis()));
  }
}

}  // namespace

Result<std::vector<Peer>> GatherRanks(const SameHostOptions& options, int memory) {
  if (options.size == 1) return std::vector<Peer>();
  Host host(options);
  MR_RETURN_IF_ERROR(host.Listen());
  MR_RETURN_IF_ERROR(host.AwaitAll(Now() + options.join_within));
  return host.Invite(memory);
}

Result<Invitation> MeetRankZero(const SameHostOptions& options) {
  const Time end = Now() + options.join_within;
  MR_ASSIGN_OR_RETURN(UniqueFd socket, Connect(options, end));
  if (!IsOurs(socket.get())) {
    return FailedPrecondition("another user uses this collective's meeting name");
  }
  const Hello hello{.rank = options.rank,
                    .size = options.size,
                    .incarnation = options.incarnation,
                    .slot_floats = options.slot_floats,
                    .proof = Hash("proof", options.meeting)};
  if (send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
    return Errno("rank 0");
  pollfd fd{socket.get(), POLLIN, 0};
  while (poll(&fd, 1, SliceUntil(end)) <= 0) {
    MR_RETURN_IF_ERROR(CheckWanted(options));
    if (Now() >= end) {
      return Unavailable(fmt::format("rank {} of {}: the others did not join within {:.3g} s",
                                     options.rank, options.size, options.join_within.seconds()));
    }
  }
  Answer answer;
  MR_ASSIGN_OR_RETURN(UniqueFd memory, ReceiveAnswer(socket.get(), answer));
  MR_RETURN_IF_ERROR(VerdictStatus(options, answer));
  if (!memory.valid()) return FailedPrecondition("rank 0 sent no shared memory");
  return Invitation{std::move(memory), {0, std::move(socket)}};
}

}  // namespace millrace::net
