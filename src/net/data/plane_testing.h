// For tests: a data plane that records its callbacks, and bytes whose values depend on their
// position.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "net/data/data_plane.h"
#include "net/testing/raw_client.h"

namespace millrace::net {

inline constexpr const char* kTestToken = "a token for tests";

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::vector<std::byte> PatternBytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = HashCounter(seed, at);
    std::memcpy(&bytes[at], &word, std::min<size_t>(8, size - at));
  }
  return bytes;
}

// Records a plane's callbacks. Any thread.
class Diary {
 public:
  struct Message {
    PeerAddress from;
    MessageClass message_class;
    std::string key;
    Payload payload;
  };

  DataPlaneEvents Events(PullHandler on_pull = nullptr) {
    DataPlaneEvents events;
    events.on_message = [this](const PeerAddress& from, MessageClass c,
                               std::span<const std::byte> key, Payload payload) {
      std::lock_guard lock(mutex_);
      messages_.push_back({from, c, AsText(key), std::move(payload)});
    };
    events.on_peer_lost = [this](const PeerAddress& peer, const Status& reason) {
      std::lock_guard lock(mutex_);
      lost_.emplace_back(peer, reason);
    };
    events.on_pull = std::move(on_pull);
    return events;
  }

  size_t messages() const {
    std::lock_guard lock(mutex_);
    return messages_.size();
  }
  bool WaitForMessages(size_t n) const {
    return Eventually([&] { return messages() >= n; });
  }
  // Also forgets them, including payloads.
  std::vector<Message> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }
  size_t lost() const {
    std::lock_guard lock(mutex_);
    return lost_.size();
  }
  std::pair<PeerAddress, Status> lost(size_t i) const {
    std::lock_guard lock(mutex_);
    return lost_.at(i);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Message> messages_;
  std::vector<std::pair<PeerAddress, Status>> lost_;
};

inline TcpDataPlaneOptions TestOptions() {
  TcpDataPlaneOptions options;
  options.token = kTestToken;
  return options;
}

// The diary outlives the plane.
struct TestPlane {
  explicit TestPlane(TcpDataPlaneOptions options = TestOptions(), PullHandler on_pull = nullptr)
      : diary(std::make_unique<Diary>()) {
    auto started = StartTcpDataPlane(std::move(options), diary->Events(std::move(on_pull)));
    MR_CHECK(started.ok()) << started.status().ToString();
    plane = std::move(*started);
  }
  const PeerAddress& address() const { return plane->self(); }

  std::unique_ptr<Diary> diary;
  std::unique_ptr<DataPlane> plane;
};

// Waits for one pull.
class PullWaiter {
 public:
  PullCallback Callback() {
    return [state = state_](Status status, uint64_t bytes) {
      std::lock_guard lock(state->mutex);
      MR_CHECK(!state->status) << "a pull ended twice";
      state->status = std::move(status);
      state->bytes = bytes;
      state->done.notify_all();
    };
  }
  bool finished() const {
    std::lock_guard lock(state_->mutex);
    return state_->status.has_value();
  }
  Status Wait() const {
    std::unique_lock lock(state_->mutex);
    const bool ended = state_->done.wait_for(lock, std::chrono::milliseconds(kTestPatienceMs),
                                             [&] { return state_->status.has_value(); });
    return ended ? *state_->status : Internal("the pull never ended");
  }
  uint64_t bytes() const {
    std::lock_guard lock(state_->mutex);
    return state_->bytes;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Status> status;
    uint64_t bytes = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Serves ranges of the owner's shared memory.
inline PullHandler Serve(const std::shared_ptr<SharedMemory>& memory) {
  return [memory = std::weak_ptr(memory)](const PeerAddress&, std::span<const std::byte>) {
    const auto held = memory.lock();
    if (held == nullptr) return Result<PullSource>(NotFound("released"));
    return Result<PullSource>(PullSegments{{held->bytes()}, held});
  };
}

inline Status PullAll(TestPlane& reader, const PeerAddress& owner, std::span<std::byte> to) {
  PullWaiter pull;
  reader.plane->Pull(owner, {}, to, Duration::Seconds(20), pull.Callback());
  return pull.Wait();
}

// An owner of alternating pieces of two shared memories, with empty ones in between; for the
// request "mixed", also of memory that is not shared.
class PiecesOwner {
 public:
  explicit PiecesOwner(size_t memory_bytes)
      : plane_(TestOptions(), [this](const PeerAddress&, std::span<const std::byte> request) {
          PullSegments source;
          for (const auto piece : Pieces(AsText(request) == "mixed")) {
            source.segments.push_back(piece);
            source.segments.push_back({});
          }
          source.pin = loose_;
          return Result<PullSource>(std::move(source));
        }) {
    for (auto& memory : memory_) {
      memory = *plane_.plane->AllocateShared(memory_bytes);
      std::ranges::copy(PatternBytes(memory_bytes, memory->number()), memory->bytes().begin());
    }
  }
  std::vector<std::byte> Expected(bool mixed) const {
    std::vector<std::byte> bytes;
    for (const auto piece : Pieces(mixed)) bytes.insert(bytes.end(), piece.begin(), piece.end());
    return bytes;
  }
  // Empty if the pull failed.
  std::vector<std::byte> PulledBy(TestPlane& reader, bool mixed) const {
    std::vector<std::byte> got(Expected(mixed).size());
    PullWaiter pull;
    reader.plane->Pull(plane_.address(), AsBytes(mixed ? "mixed" : ""), got, Duration::Seconds(20),
                       pull.Callback());
    return pull.Wait().ok() ? got : std::vector<std::byte>();
  }

 private:
  std::vector<std::span<const std::byte>> Pieces(bool mixed) const {
    std::vector<std::span<const std::byte>> pieces;
    for (size_t at = 0; at + 5000 <= memory_[0]->bytes().size(); at += 5000) {
      pieces.push_back(memory_[0]->bytes().subspan(at, 1000));
      pieces.push_back(memory_[1]->bytes().subspan(at + 7, 4000));
    }
    if (mixed) pieces.push_back(*loose_);
    return pieces;
  }

  const std::shared_ptr<std::vector<std::byte>> loose_ =
      std::make_shared<std::vector<std::byte>>(PatternBytes(50'000, 9));
  std::shared_ptr<SharedMemory> memory_[2];
  TestPlane plane_;
};

// A process that shares memory (PatternBytes of seed 11) and serves it until it is killed.
class OtherProcess {
 public:
  explicit OtherProcess(size_t bytes) {
    int announce[2];
    MR_CHECK(pipe(announce) == 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::shared_ptr<SharedMemory> memory;
      TestPlane owner(TestOptions(), [&](const PeerAddress& from, std::span<const std::byte> r) {
        return Serve(memory)(from, r);
      });
      memory = *owner.plane->AllocateShared(bytes);
      std::ranges::copy(PatternBytes(bytes, 11), memory->bytes().begin());
      const PeerAddress self = owner.address();
      const std::string line = self.endpoint + " " + std::to_string(self.incarnation) + "\n";
      [[maybe_unused]] const ssize_t n = write(announce[1], line.data(), line.size());
      while (true) pause();
    }
    char line[200] = "", endpoint[100];
    MR_CHECK(read(announce[0], line, sizeof(line) - 1) > 0);
    unsigned long incarnation = 0;  // NOLINT(google-runtime-int): scanf's type
    MR_CHECK(std::sscanf(line, "%99s %lu", endpoint, &incarnation) == 2);
    address_.endpoint = endpoint;
    address_.incarnation = incarnation;
    close(announce[0]);
    close(announce[1]);
  }
  ~OtherProcess() { Kill(); }
  const PeerAddress& address() const { return address_; }
  void Kill() {
    if (child_ == 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
  PeerAddress address_;
};

}  // namespace millrace::net
