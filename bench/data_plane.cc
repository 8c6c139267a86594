// How close the data plane comes to the limits of the machine.
//
//   build/release/bench/data_plane_bench [rounds, default 15]
//
// Method: a child process owns 64 MiB; this process pulls it in blocks of 1 MiB, sixteen at a time.
// Each figure is bytes over time of one round (the 64 MiB eight times). A round measures every
// variant once, one after another, so that a busy machine disturbs all of them. The output is the
// median over rounds of the figure and of its ratio to the reference of the same round. With few
// cores, most of the time is waiting for them. The second ratio therefore uses the processor time
// of the busier of the two processes, which bounds the rate on a machine with free cores.
//   socket    raw: the child writes the same blocks to a plain TCP connection of 127.0.0.1 as fast
//             as it can, this process reads them into the same places. No requests, no checksums.
//   same host memcpy of the same blocks within this process. Pulls of shared memory map it.
// Messages: 64 bytes in each direction (one message each); half of the time, median. The raw one
// does the same with read and write on a plain connection. Targets: pulls through the socket at
// least 0.80 of raw, from the owner's shared memory at least 0.70 of memcpy.
#include "net/data/data_plane.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/statistics.h"
#include "net/data/crc32c.h"

namespace millrace::net {
namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kBlocks = 64;
constexpr int kPasses = 8;
constexpr size_t kAtOnce = 16;
constexpr int kPings = 2000;
constexpr size_t kPingBytes = 64;

double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double Now() { return Seconds(CLOCK_MONOTONIC); }

struct Sample {
  double rate = 0;                   // GB/s
  double reader_s = 0, owner_s = 0;  // processor time per GB; for memcpy all of it is the reader's
  double busier_s() const { return std::max(reader_s, owner_s); }
};

// One variant over the rounds.
struct Series {
  std::vector<double> rates, ratios, busy_ratios, reader_ms, owner_ms;
  void Add(const Sample& s, const Sample& reference) {
    rates.push_back(s.rate);
    ratios.push_back(s.rate / reference.rate);
    busy_ratios.push_back(reference.busier_s() / s.busier_s());
    reader_ms.push_back(s.reader_s * 1e3);
    owner_ms.push_back(s.owner_s * 1e3);
  }
  void Print(const std::string& name) const {
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.0f} |\n", name, Median(rates),
               Median(ratios), Median(busy_ratios), Median(reader_ms), Median(owner_ms));
  }
};

// ---- raw sockets

void ReadAll(int fd, void* to, size_t n) {
  for (auto* p = static_cast<char*>(to); n > 0;) {
    const ssize_t got = read(fd, p, n);
    MR_CHECK(got > 0);
    p += got;
    n -= static_cast<size_t>(got);
  }
}

void WriteAll(int fd, const void* from, size_t n) {
  for (const auto* p = static_cast<const char*>(from); n > 0;) {
    const ssize_t sent = write(fd, p, n);
    MR_CHECK(sent > 0);
    p += sent;
    n -= static_cast<size_t>(sent);
  }
}

// The same settings as the data plane's on loopback, so that they cause no difference.
void Tune(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

int ListenAnywhere(uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MR_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  MR_CHECK(listen(fd, 1) == 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.sin_port);
  return fd;
}

int ConnectTo(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  MR_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  Tune(fd);
  return fd;
}

// ---- the child: owns the blocks

TcpDataPlaneOptions Options(bool direct) {
  TcpDataPlaneOptions o;
  o.token = "bench";
  o.direct_reads = direct;
  return o;
}

struct Hello {  // from the child, through a pipe
  uint16_t raw_port = 0;
  char endpoint[64] = "";
  uint64_t incarnation = 0;
};

// A command on the raw connection, with the number of passes to write or pings to echo.
enum class Command : char { kPass, kPing, kEnd };

struct Request {
  uint32_t block = 0;
};

void FillBlocks(std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 31 >> 3);
}

[[noreturn]] void Own(int announce) {
  std::shared_ptr<SharedMemory> shared;
  DataPlane* plane = nullptr;
  DataPlaneEvents events;
  events.on_pull = [&](const PeerAddress&, std::span<const std::byte> bytes) {
    Request r;
    std::memcpy(&r, bytes.data(), sizeof(r));
    return Result<PullSource>(
        PullSegments{{shared->bytes().subspan(r.block * kBlockBytes, kBlockBytes)}, shared});
  };
  events.on_message = [&](const PeerAddress& from, MessageClass c, std::span<const std::byte> key,
                          Payload payload) {
    MR_CHECK(plane->Send(from, c, key, std::move(payload)).ok());
  };
  auto started = StartTcpDataPlane(Options(true), std::move(events));
  MR_CHECK(started.ok());
  plane = started->get();
  shared = *plane->AllocateShared(kBlocks * kBlockBytes);
  FillBlocks(shared->bytes());
  Hello hello;
  const int listener = ListenAnywhere(hello.raw_port);
  std::snprintf(hello.endpoint, sizeof(hello.endpoint), "%s", plane->self().endpoint.c_str());
  hello.incarnation = plane->self().incarnation;
  WriteAll(announce, &hello, sizeof(hello));
  const int fd = accept(listener, nullptr, nullptr);
  Tune(fd);
  while (true) {
    auto command = Command::kEnd;
    ReadAll(fd, &command, sizeof(command));
    if (command == Command::kEnd) _exit(0);
    if (command == Command::kPass) {
      for (size_t b = 0; b < kBlocks; ++b) {
        WriteAll(fd, shared->bytes().data() + b * kBlockBytes, kBlockBytes);
      }
    } else {
      char ping[kPingBytes];
      for (int i = 0; i < kPings; ++i) {
        ReadAll(fd, ping, sizeof(ping));
        WriteAll(fd, ping, sizeof(ping));
      }
    }
  }
}

// ---- this process

enum class Way { kSocket, kShared };

class Bench {
 public:
  explicit Bench(const Hello& hello) : raw_(ConnectTo(hello.raw_port)) {
    owner_.endpoint = hello.endpoint;
    owner_.incarnation = hello.incarnation;
    for (const bool direct : {false, true}) {
      DataPlaneEvents events;
      events.on_message = [this](const PeerAddress&, MessageClass, std::span<const std::byte>,
                                 Payload) {
        std::lock_guard lock(mutex_);
        ++echoes_;
        changed_.notify_one();
      };
      auto started = StartTcpDataPlane(Options(direct), std::move(events));
      MR_CHECK(started.ok());
      planes_[direct ? 1 : 0] = std::move(*started);
    }
    destination_.resize(kBlocks * kBlockBytes);
    source_.resize(kBlocks * kBlockBytes);
    std::ranges::fill(source_, std::byte{7});
  }

  double Raw() {
    const double start = Now();
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto command = Command::kPass;
      WriteAll(raw_, &command, sizeof(command));
      for (size_t b = 0; b < kBlocks; ++b) {
        ReadAll(raw_, destination_.data() + b * kBlockBytes, kBlockBytes);
      }
    }
    return Rate(start);
  }

  double Memcpy() {
    const double start = Now();
    for (int pass = 0; pass < kPasses; ++pass) {
      for (size_t b = 0; b < kBlocks; ++b) {
        std::memcpy(destination_.data() + b * kBlockBytes, source_.data() + b * kBlockBytes,
                    kBlockBytes);
      }
    }
    return Rate(start);
  }

  // Like a reader: the end of one pull starts the next.
  double Pulls(Way way) {
    const double start = Now();
    begun_ = done_ = 0;
    for (size_t i = 0; i < kAtOnce; ++i) Next(way);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == kBlocks * kPasses; });
    return Rate(start);
  }

  double RawPingMicros() {
    const auto command = Command::kPing;
    WriteAll(raw_, &command, sizeof(command));
    char ping[kPingBytes] = "";
    std::vector<double> times;
    for (int i = 0; i < kPings; ++i) {
      const double start = Now();
      WriteAll(raw_, ping, sizeof(ping));
      ReadAll(raw_, ping, sizeof(ping));
      times.push_back((Now() - start) / 2 * 1e6);
    }
    return Median(times);
  }

  double PingMicros() {
    const std::vector<std::byte> ping(kPingBytes);
    std::vector<double> times;
    for (int i = 0; i < kPings; ++i) {
      const double start = Now();
      std::unique_lock lock(mutex_);
      const int before = echoes_;
      lock.unlock();
      MR_CHECK(planes_[0]->Send(owner_, MessageClass::kDecode, {}, Payload(nullptr, ping)).ok());
      lock.lock();
      changed_.wait(lock, [&] { return echoes_ > before; });
      times.push_back((Now() - start) / 2 * 1e6);
    }
    return Median(times);
  }

  void CheckBytes() const {
    for (size_t i = 0; i < destination_.size(); ++i) {
      MR_CHECK(destination_[i] == static_cast<std::byte>(i * 31 >> 3)) << "at " << i;
    }
  }
  bool Mapped() const { return planes_[1]->stats().pulls_mapped > 0; }

  void End() {
    const auto command = Command::kEnd;
    WriteAll(raw_, &command, sizeof(command));
    for (auto& plane : planes_) plane->Stop();
  }

 private:
  void Next(Way way) {
    Request request;
    {
      std::lock_guard lock(mutex_);
      if (begun_ == kBlocks * kPasses) return;
      request.block = static_cast<uint32_t>(begun_++ % kBlocks);
    }
    planes_[way == Way::kSocket ? 0 : 1]->Pull(
        owner_, std::as_bytes(std::span(&request, 1)),
        std::span(destination_).subspan(request.block * kBlockBytes, kBlockBytes),
        Duration::Seconds(60), [this, way](const Status& status, uint64_t bytes) {
          MR_CHECK(status.ok() && bytes == kBlockBytes) << status.ToString();
          Next(way);
          std::lock_guard lock(mutex_);
          if (++done_ == kBlocks * kPasses) changed_.notify_one();
        });
  }

  static double Rate(double start) {
    return static_cast<double>(kBlocks * kBlockBytes) * kPasses / (Now() - start) * 1e-9;
  }

  const int raw_;
  PeerAddress owner_;
  std::unique_ptr<DataPlane> planes_[2];
  std::vector<std::byte> destination_, source_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t begun_ = 0, done_ = 0;
  int echoes_ = 0;
};

int Run(int rounds) {
  int announce[2];
  MR_CHECK(pipe(announce) == 0);
  const pid_t child = fork();
  if (child == 0) Own(announce[1]);
  Hello hello;
  ReadAll(announce[0], &hello, sizeof(hello));
  Bench bench(hello);
  clockid_t child_clock = 0;
  MR_CHECK(clock_getcpuclockid(child, &child_clock) == 0);
  const auto measure = [&](auto variant) {
    const double mine = Seconds(CLOCK_PROCESS_CPUTIME_ID), theirs = Seconds(child_clock);
    Sample s;
    s.rate = variant();
    const double gigabytes = static_cast<double>(kBlocks * kBlockBytes) * kPasses * 1e-9;
    s.reader_s = (Seconds(CLOCK_PROCESS_CPUTIME_ID) - mine) / gigabytes;
    s.owner_s = (Seconds(child_clock) - theirs) / gigabytes;
    return s;
  };
  Series raw, socket, copy, shared;
  std::vector<double> ping, raw_ping;
  for (int round = -1; round < rounds; ++round) {
    const Sample r = measure([&] { return bench.Raw(); });
    const Sample s = measure([&] { return bench.Pulls(Way::kSocket); });
    const Sample c = measure([&] { return bench.Memcpy(); });
    const Sample m = measure([&] { return bench.Pulls(Way::kShared); });
    const double rp = bench.RawPingMicros(), ours = bench.PingMicros();
    if (round < 0) {  // connects, and touches all pages
      bench.CheckBytes();
      continue;
    }
    raw.Add(r, r);
    socket.Add(s, r);
    copy.Add(c, c);
    shared.Add(m, c);
    raw_ping.push_back(rp);
    ping.push_back(ours);
  }
  const bool mapped = bench.Mapped();
  bench.End();
  waitpid(child, nullptr, 0);
  fmt::print("Medians of {} rounds of {} MiB in blocks of 1 MiB, {} at a time; checksum by {}.\n\n",
             rounds, kBlocks * kPasses, kAtOnce, internal::CrcKindName(internal::BestCrc()));
  fmt::print(
      "| what | GB/s | of reference | by CPU time of the busier | reader ms per GB | owner ms per "
      "GB |\n"
      "|---|---|---|---|---|---|\n");
  raw.Print("raw socket");
  socket.Print("pulls through the socket (>= 0.80)");
  copy.Print("memcpy");
  shared.Print(mapped ? "pulls of shared memory (>= 0.70)"
                      : "pulls of shared memory: not permitted");
  fmt::print("\n64 bytes, one way: raw socket {:.1f} us, message {:.1f} us\n", Median(raw_ping),
             Median(ping));
  return 0;
}

}  // namespace
}  // namespace millrace::net

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    fmt::print(stderr, "usage: data_plane_bench [rounds, at least 1]\n");
    return 2;
  }
  return millrace::net::Run(rounds);
}
