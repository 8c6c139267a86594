// Tests the memory of ten thousand idle connections, and that they do not slow down others. The
// clients run in a child process, so that each side has its own descriptors and memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/statistics.h"
#include "net/http/http_server.h"
#include "net/testing/raw_client.h"

namespace millrace::net {
namespace {

constexpr size_t kConnectionsWanted = 10'000;
constexpr size_t kOtherFiles = 200;
constexpr double kBytesPerConnectionMax = 20 * 1024;

// Returns as many connections as the hard limit on open files allows, and raises the soft limit.
size_t ConnectionsPossible() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kConnectionsWanted + kOtherFiles);
  setrlimit(RLIMIT_NOFILE, &limit);
  MR_CHECK(limit.rlim_cur > 2 * kOtherFiles) << "raise the limit on open files (ulimit -Hn)";
  return limit.rlim_cur - kOtherFiles;
}

size_t ResidentBytes() {
  unsigned long total = 0, resident = 0;  // NOLINT(google-runtime-int): the type of %lu
  std::unique_ptr<FILE, decltype(&fclose)> file(fopen("/proc/self/statm", "r"), fclose);
  MR_CHECK(file != nullptr && std::fscanf(file.get(), "%lu %lu", &total, &resident) == 2);
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Reads the port from the pipe, opens the connections, makes one request on each, and holds them
// until killed.
[[noreturn]] void HoldConnections(int port_pipe, size_t connections) {
  uint16_t port = 0;
  if (read(port_pipe, &port, sizeof(port)) != sizeof(port)) _exit(1);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < connections; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    if (StatusOf(clients.back()->ReadResponse()) != 200) _exit(1);
  }
  while (true) pause();
}

// The median time of a request on a connection of its own, in milliseconds.
double MedianRequestMs(uint16_t port) {
  constexpr int kRequests = 201;
  const SteadyClock clock;
  std::vector<double> times_ms;
  RawClient client(port);
  for (int i = 0; i < kRequests; ++i) {
    const Time start = clock.Now();
    client.Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    MR_CHECK(StatusOf(client.ReadResponse()) == 200);
    times_ms.push_back((clock.Now() - start).millis());
  }
  return Median(std::move(times_ms));
}

TEST(IdleConnections, TenThousandAreCheap) {
  const size_t connections = ConnectionsPossible();
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  const pid_t child = fork();  // before the server has threads
  if (child == 0) HoldConnections(port_pipe[0], connections);
  HttpServerOptions options;
  options.idle_timeout = Duration::Seconds(600);
  auto server = HttpServer::Start(options, [](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->Send({200, {}, "ok"});
  });
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const uint16_t port = (*server)->port();
  const double quiet_ms = MedianRequestMs(port);
  const size_t before_bytes = ResidentBytes();
  ASSERT_EQ(write(port_pipe[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  ASSERT_TRUE(
      Eventually([&] { return (*server)->connections() >= connections; }, Duration::Seconds(200)));
  const double per_connection =
      (static_cast<double>(ResidentBytes()) - static_cast<double>(before_bytes)) /
      static_cast<double>(connections);
  const double crowded_ms = MedianRequestMs(port);
  std::printf("%zu idle connections: %.1f KB each; a request takes %.3f ms, alone %.3f ms\n",
              connections, per_connection / 1024, crowded_ms, quiet_ms);
#ifndef MILLRACE_SANITIZED  // sanitizers add memory of their own
  EXPECT_LE(per_connection, kBytesPerConnectionMax);
#endif
  EXPECT_LT(crowded_ms, quiet_ms * 10 + 5);  // detects a stall, not a slow machine
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return (*server)->connections() == 0; }, Duration::Seconds(60)));
}

}  // namespace
}  // namespace millrace::net
