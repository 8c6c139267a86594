// Tests of shared memory: what is mapped, for how long, and what a malicious owner can do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "net/data/crc32c.h"
#include "net/data/direct_read.h"
#include "net/data/frame.h"
#include "net/data/hello.h"
#include "net/data/plane_testing.h"
#include "net/data/same_host.h"
#include "net/listener.h"

namespace millrace::net {
namespace {

constexpr const char* kFileName = "millrace-pulls";

size_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find(kFileName) != line.npos;
  return n;
}

struct Descriptors {
  size_t all = 0, shared = 0;
};
Descriptors OpenDescriptors() {
  Descriptors d;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++d.all;
    d.shared += std::filesystem::read_symlink(entry.path(), ignored).string().find(kFileName) !=
                std::string::npos;
  }
  return d;
}

TEST(DataPlaneShared, ItCannotShrinkUnderAReader) {
  auto memory = SharedMemory::Create(100'000, {.number = 3}, nullptr);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ((*memory)->bytes().size(), 100'000u);
  EXPECT_NE(ftruncate((*memory)->fd(), 10), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(SharedMemory::Create(0, {}, nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::Create(SIZE_MAX, {}, nullptr).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(DataPlaneShared, MappedOnceAndUnmappedWhenTheOwnerReleasesIt) {
  std::shared_ptr<SharedMemory> memory;
  TestPlane owner(TestOptions(), [&](const PeerAddress& from, std::span<const std::byte> request) {
    return Serve(memory)(from, request);
  });
  memory = *owner.plane->AllocateShared(3'000'001);
  const auto want = PatternBytes(memory->bytes().size(), 4);
  std::ranges::copy(want, memory->bytes().begin());
  EXPECT_EQ(SharedMappings(), 1u);
  TestPlane reader;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::byte> got(want.size());
    ASSERT_TRUE(PullAll(reader, owner.address(), got).ok());
    EXPECT_EQ(got, want);
    EXPECT_EQ(SharedMappings(), 2u);  // the owner's and the reader's
    EXPECT_EQ(OpenDescriptors().shared, 1u);
  }
  EXPECT_EQ(reader.plane->stats().pulls_mapped, 3u);
  memory.reset();
  EXPECT_TRUE(Eventually([] { return SharedMappings() == 0; }));
  EXPECT_EQ(OpenDescriptors().shared, 0u);
  EXPECT_EQ(reader.diary->lost(), 0u);
}

TEST(DataPlaneShared, TheLeastRecentlyUsedMappingIsReplaced) {
  constexpr size_t kMany = MappedMemory::kMappingsMax + 5;
  std::vector<std::shared_ptr<SharedMemory>> all;
  TestPlane owner(TestOptions(), [&](const PeerAddress&, std::span<const std::byte> request) {
    const auto& memory = all[std::stoul(AsText(request))];
    return Result<PullSource>(PullSegments{{memory->bytes()}, memory});
  });
  for (size_t i = 0; i < kMany; ++i) {
    all.push_back(*owner.plane->AllocateShared(64 << 10));
    std::ranges::copy(PatternBytes(64 << 10, i), all[i]->bytes().begin());
  }
  TestPlane reader;
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < kMany; ++i) {
      std::vector<std::byte> got(64 << 10);
      PullWaiter pull;
      reader.plane->Pull(owner.address(), AsBytes(std::to_string(i)), got, Duration::Seconds(20),
                         pull.Callback());
      ASSERT_TRUE(pull.Wait().ok());
      EXPECT_EQ(got, PatternBytes(64 << 10, i));
    }
  }
  EXPECT_EQ(reader.plane->stats().pulls_mapped, 2 * kMany);
  EXPECT_EQ(SharedMappings(), kMany + MappedMemory::kMappingsMax);
}

TEST(DataPlaneShared, SegmentsOfSeveralMemoriesAndOthersBetween) {
  PiecesOwner owner(50'000);
  TestPlane reader;
  for (const bool mixed : {false, true}) {
    EXPECT_EQ(owner.PulledBy(reader, mixed), owner.Expected(mixed)) << mixed;
  }
  EXPECT_EQ(reader.plane->stats().pulls_mapped, 1u);  // the mixed one goes through the socket
}

#ifndef __SANITIZE_THREAD__  // it does not support a child that starts threads
TEST(DataPlaneShared, AnOwnerThatIsKilledLeavesNothingBehind) {
  constexpr size_t kBytes = 32 << 20;
  std::vector<std::unique_ptr<OtherProcess>> owners;
  for (int i = 0; i < 3; ++i) owners.push_back(std::make_unique<OtherProcess>(kBytes));
  TestPlane reader;
  const size_t before = OpenDescriptors().all;
  for (int i = 0; i < 3; ++i) {
    OtherProcess& owner = *owners[static_cast<size_t>(i)];
    std::vector<std::byte> got(kBytes);
    ASSERT_TRUE(PullAll(reader, owner.address(), got).ok());
    EXPECT_EQ(got, PatternBytes(kBytes, 11));
    EXPECT_EQ(SharedMappings(), 1u);
    // Killed while pulls are being copied: they succeed or fail, and nothing crashes.
    std::vector<std::vector<std::byte>> more(4, std::vector<std::byte>(kBytes));
    std::vector<PullWaiter> pulls(4);
    for (size_t k = 0; k < 4; ++k) {
      reader.plane->Pull(owner.address(), {}, more[k], Duration::Seconds(20), pulls[k].Callback());
    }
    usleep(3000 * (i + 1));
    owner.Kill();
    for (const PullWaiter& pull : pulls) {
      const StatusCode code = pull.Wait().code();
      EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kUnavailable);
    }
    EXPECT_TRUE(Eventually([&] { return reader.diary->lost() == static_cast<size_t>(i + 1); }));
    EXPECT_EQ(SharedMappings(), 0u);
    EXPECT_EQ(OpenDescriptors().all, before);
  }
  EXPECT_GE(reader.plane->stats().pulls_mapped, 3u);
}
#endif  // __SANITIZE_THREAD__

// An owner that knows the token and replies to pulls as scripted. Blocking, one reader.
class RogueOwner {
 public:
  // Called with the header and the flags of a pull. Replies with SendFrame.
  using Answer = std::function<void(RogueOwner&, const FrameHeader&, bool may_map)>;

  explicit RogueOwner(Answer answer) : cookie_(RandomNonce()), answer_(std::move(answer)) {
    address_.incarnation = RandomIncarnation();
    address_.host_id = ThisHostId();
    address_.process_id = getpid();
    auto listener = Listener::Start("127.0.0.1", 0, [this](UniqueFd fd, std::string) {
      fcntl(fd.get(), F_SETFL, 0);
      socket_ = std::move(fd);
      thread_ = std::thread([this] { Run(); });
    });
    MR_CHECK(listener.ok());
    listener_ = std::move(*listener);
    address_.endpoint = "127.0.0.1:" + std::to_string(listener_->port());
  }
  ~RogueOwner() {
    listener_->Stop();
    shutdown(socket_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  const PeerAddress& address() const { return address_; }
  const Nonce& cookie() const { return cookie_; }

  void SendFrame(FrameHeader h, std::span<const std::byte> payload = {}) {
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    Send(EncodeHeader(h, Crc32c(payload), frames_++));
    Send(payload);
  }
  void SendShared(uint64_t id, const SharedSegment& segment, uint64_t total) {
    SendFrame({.type = FrameType::kPullShared, .id = id, .value = total},
              EncodeSegments(std::span(&segment, 1)));
  }
  void SendBytes(uint64_t id, std::span<const std::byte> bytes) {
    SendFrame({.type = FrameType::kPullData, .id = id}, bytes);
    SendFrame({.type = FrameType::kPullEnd, .id = id, .value = bytes.size()});
  }

 private:
  void Send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  bool Receive(std::span<std::byte> out) {
    return recv(socket_.get(), out.data(), out.size(), MSG_WAITALL) ==
           static_cast<ssize_t>(out.size());
  }
  void Run() {
    const Challenge challenge{RandomNonce(), address_.incarnation};
    Send(EncodeChallenge(challenge));
    std::vector<std::byte> raw(12);
    if (!Receive(raw)) return;
    uint32_t length = 0;
    std::memcpy(&length, &raw[8], sizeof(length));
    raw.resize(length);
    if (!Receive(std::span(raw).subspan(12))) return;
    const auto said = DecodeAnswer(raw, challenge, {kTestToken, {}});
    MR_CHECK(said.ok());
    net::Welcome welcome;
    welcome.window_bytes = {1 << 20, 1 << 20, 1 << 20};
    welcome.pulls = 8;
    welcome.self = address_;
    welcome.user_id = geteuid();
    welcome.shares_memory = true;
    welcome.cookie = cookie_;
    Send(EncodeWelcome(welcome, *said, challenge, {kTestToken, {}}));
    struct Sink : FrameSink {
      Status OnFrameStart(const FrameHeader& h) override {
        payload.resize(h.payload_bytes);
        return OkStatus();
      }
      std::span<std::byte> PlaceFor(const FrameHeader&, size_t at) override {
        return std::span(payload).subspan(at);
      }
      Status OnFrameEnd(const FrameHeader& h) override {
        if (h.type == FrameType::kPull) {
          owner->answer_(*owner, h, DecodePullHead(payload)->direct);
        }
        return OkStatus();
      }
      RogueOwner* owner = nullptr;
      std::vector<std::byte> payload;
    } sink;
    sink.owner = this;
    FrameDecoder decoder(sink);
    while (true) {
      const std::span<std::byte> place = decoder.Place();
      const ssize_t n = recv(socket_.get(), place.data(), place.size(), 0);
      if (n <= 0 || !decoder.Advance(static_cast<size_t>(n)).ok()) return;
    }
  }

  PeerAddress address_;
  const Nonce cookie_;
  const Answer answer_;
  UniqueFd socket_;
  uint32_t frames_ = 0;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
};

// A memory file as an owner would create it, except for `seals` and `header`.
UniqueFd MemoryFile(const SharedMemoryHeader& header, size_t size, int seals) {
  UniqueFd fd(memfd_create("rogue", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  MR_CHECK(ftruncate(fd.get(), static_cast<off_t>(size)) == 0);
  MR_CHECK(pwrite(fd.get(), &header, std::min(size, sizeof(header)), 0) > 0);
  MR_CHECK(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

uint64_t Name(const UniqueFd& fd) { return static_cast<uint64_t>(fd.get()); }

constexpr size_t kSize = 64 << 10;  // bytes requested
constexpr size_t kFileSize = kSharedHeaderBytes + kSize;

TEST(DataPlaneShared, MissingMemoryIsAnErrorOfThatPullOnly) {
  SharedMemoryHeader header{.number = 1};
  UniqueFd sealed, loose, tiny;
  SharedSegment named;
  RogueOwner owner([&](RogueOwner& o, const FrameHeader& pull, bool may_map) {
    if (!may_map || pull.value != kSize) {
      return o.SendBytes(pull.id, PatternBytes(pull.value, 1));
    }
    o.SendShared(pull.id, named, kSize);
  });
  header.cookie = owner.cookie();
  sealed = MemoryFile(header, kFileSize, F_SEAL_SHRINK);
  loose = MemoryFile(header, kFileSize, F_SEAL_GROW);
  tiny = MemoryFile(header, kSharedHeaderBytes, F_SEAL_SHRINK);
  const std::vector<std::pair<const char*, SharedSegment>> lies = {
      {"memory that may be cut short", {1, Name(loose), 0, kSize}},
      {"memory of no bytes", {1, Name(tiny), 0, kSize}},
      {"another memory's number", {2, Name(sealed), 0, kSize}},
      {"one byte too far", {1, Name(sealed), 1, kSize}},
      {"far outside", {1, Name(sealed), kSize + 1, kSize}},
      {"an offset that wraps", {1, Name(sealed), UINT64_MAX - 10, kSize}},
  };
  TestPlane reader;
  std::vector<std::byte> got(kSize);
  for (const auto& [what, segment] : lies) {
    named = segment;
    EXPECT_EQ(PullAll(reader, owner.address(), got).code(), StatusCode::kInvalidArgument) << what;
    // Other pulls from this peer still work.
    EXPECT_TRUE(PullAll(reader, owner.address(), std::span(got).first(100)).ok()) << what;
  }
  // Without content and without a sum: the reader copies holes and waits for the owner's sum.
  named = {1, Name(sealed), 0, kSize};
  PullWaiter waiting;
  reader.plane->Pull(owner.address(), {}, got, Duration::Millis(50), waiting.Callback());
  EXPECT_EQ(waiting.Wait().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(reader.diary->lost(), 0u);
  EXPECT_EQ(reader.plane->stats().connections_made, 1u);
}

TEST(DataPlaneShared, AWrongSumIsDataLoss) {
  UniqueFd file;
  RogueOwner owner([&](RogueOwner& o, const FrameHeader& pull, bool) {
    o.SendShared(pull.id, {1, Name(file), 0, kSize}, kSize);
    o.SendFrame({.type = FrameType::kPullSum, .id = pull.id, .value = 12345});
  });
  file = MemoryFile({.number = 1, .cookie = owner.cookie()}, kFileSize, F_SEAL_SHRINK);
  TestPlane reader;
  std::vector<std::byte> got(kSize);
  EXPECT_EQ(PullAll(reader, owner.address(), got).code(), StatusCode::kDataLoss);
  EXPECT_EQ(reader.plane->stats().checksum_errors, 1u);
}

TEST(DataPlaneShared, MemoryThatCannotBeOpenedIsSentThroughTheSocket) {
  const auto bytes = PatternBytes(kSize, 6);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]), writing(ends[1]), device(open("/dev/zero", O_RDWR));
  const UniqueFd stranger = MemoryFile({.number = 1}, kFileSize, F_SEAL_SHRINK);
  const std::pair<const char*, uint64_t> files[] = {{"a pipe", Name(reading)},
                                                    {"a device", Name(device)},
                                                    {"nothing", 1'000'000},
                                                    {"no descriptor", UINT64_MAX},
                                                    {"another's cookie", Name(stranger)}};
  for (const auto& [what, descriptor] : files) {
    RogueOwner owner([&, d = descriptor](RogueOwner& o, const FrameHeader& pull, bool may_map) {
      if (!may_map) return o.SendBytes(pull.id, bytes);
      o.SendShared(pull.id, {1, d, 0, kSize}, kSize);
    });
    TestPlane reader;
    std::vector<std::byte> got(kSize);
    ASSERT_TRUE(PullAll(reader, owner.address(), got).ok()) << what;
    EXPECT_EQ(got, bytes) << what;
    EXPECT_EQ(reader.plane->stats().pulls_mapped, 0u);
  }
}

TEST(DataPlaneShared, AnOwnerThatViolatesTheProtocolIsCutOff) {
  using Act = std::function<void(RogueOwner&, const FrameHeader&)>;
  const std::vector<std::byte> cut(kSharedSegmentBytes - 1);
  const auto shared = [](const SharedSegment& s, uint64_t total) {
    return [=](RogueOwner& o, const FrameHeader& pull) { o.SendShared(pull.id, s, total); };
  };
  const std::pair<const char*, Act> acts[] = {
      {"segments cut short",
       [&](RogueOwner& o, const FrameHeader& pull) {
         o.SendFrame({.type = FrameType::kPullShared, .id = pull.id, .value = kSize}, cut);
       }},
      {"too few bytes", shared({1, 1, 0, kSize - 1}, kSize)},
      {"too many bytes", shared({1, 1, 0, kSize + 1}, kSize)},
      {"more than was asked for", shared({1, 1, 0, kSize + 1}, kSize + 1)},
      {"a sum before the segments",
       [](RogueOwner& o, const FrameHeader& pull) {
         o.SendFrame({.type = FrameType::kPullSum, .id = pull.id, .value = 1});
       }},
      {"the frame that named addresses",
       [](RogueOwner& o, const FrameHeader& pull) {
         o.SendFrame({.type = FrameType{8}, .id = pull.id, .value = kSize}, PatternBytes(16, 1));
       }},
      {"the frame that was RDMA's",
       [](RogueOwner& o, const FrameHeader& pull) {
         o.SendFrame({.type = FrameType{13}, .id = pull.id, .value = kSize}, PatternBytes(50, 1));
       }},
      {"a region that goes with a payload",
       [&](RogueOwner& o, const FrameHeader&) {
         o.SendFrame({.type = FrameType::kSharedGone, .id = 1}, cut);
       }},
  };
  for (const auto& [what, act] : acts) {
    RogueOwner owner([&, a = act](RogueOwner& o, const FrameHeader& pull, bool) {
      o.SendFrame({.type = FrameType::kSharedGone, .id = 77});  // unknown number: ignored
      a(o, pull);
    });
    TestPlane reader;
    std::vector<std::byte> got(kSize);
    EXPECT_EQ(PullAll(reader, owner.address(), got).code(), StatusCode::kInvalidArgument) << what;
    EXPECT_EQ(reader.plane->stats().protocol_errors, 1u) << what;
    EXPECT_TRUE(Eventually([&] { return reader.diary->lost() == 1; })) << what;
  }
}

}  // namespace
}  // namespace millrace::net
