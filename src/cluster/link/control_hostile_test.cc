// Hostile clients at the control port. The server runs in a child process, so that a crash is
// detected. After each attack a healthy worker's original session must still answer.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <tuple>

#include "base/rng.h"
#include "cluster/link/testing/link_harness.h"
#include "cluster/link/testing/raw_http2.h"
#include "wire/control.grpc.pb.h"

namespace millrace::cluster {
namespace {

using namespace testing;  // NOLINT: the vocabulary of this file

constexpr char kChildVariable[] = "MILLRACE_HOSTILE_TEST_SERVER";

// ---- the child: answers ShardProgress with UnloadShard, and floods the sender of PipelineOpened.

void Serve() {
  ControlServer* server = nullptr;
  auto started = ControlServer::Start(
      {.security = PlainText(), .send_bytes_max = 4 << 20, .stall_limit = Duration::Seconds(60)},
      {.on_message =
           [&](ConnectionId from, const ToController& message, const wire::Envelope&) {
             if (const auto* ping = std::get_if<ShardProgress>(&message)) {
               (void)server->Send(from, Term(1), UnloadShard{ping->shard});
             }
             if (!std::holds_alternative<PipelineOpened>(message)) return;
             const ToWorker big = ExportKv{{}, std::vector<BlockIndex>(60000, 1), 1, {}};
             while (server->Send(from, Term(1), big).ok()) continue;
           },
       .on_heartbeat = [](ConnectionId, const Heartbeat&) {},
       .on_disconnect = [](ConnectionId, const Status&) {}});
  MR_CHECK(started.ok());
  server = started->get();
  const std::string port = std::to_string(server->port()) + "\n";
  MR_CHECK(write(STDOUT_FILENO, port.data(), port.size()) > 0);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
    const ControlServerCounters c = server->counters();
    const std::string answer = std::to_string(byte == 's' ? c.dropped_slow : c.refused) + "\n";
    MR_CHECK(write(STDOUT_FILENO, answer.data(), answer.size()) > 0);
  }
}

class ServerProcess {
 public:
  ServerProcess() {
    int in[2], out[2];
    MR_CHECK(pipe(in) == 0 && pipe(out) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      setenv(kChildVariable, "1", 1);
      execl("/proc/self/exe", "server", "--gtest_filter=HostileServer.*", "--gtest_brief=1",
            nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = fdopen(out[0], "r");
    while (port_ == 0) port_ = static_cast<int>(ReadNumber());
  }
  ~ServerProcess() {
    close(to_);
    waitpid(pid_, nullptr, 0);
    fclose(from_);
  }
  bool Alive() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Sessions dropped because they did not read.
  uint64_t DroppedSlow() { return Ask("s"); }
  uint64_t Refused() { return Ask("r"); }

 private:
  uint64_t Ask(const char* what) {
    MR_CHECK(write(to_, what, 1) == 1);
    return ReadNumber();
  }
  uint64_t ReadNumber() {
    char line[256] = {};
    MR_CHECK(fgets(line, sizeof line, from_) != nullptr) << "the server process has exited";
    return std::strtoull(line, nullptr, 10);
  }
  pid_t pid_ = 0;
  int to_ = -1;
  FILE* from_ = nullptr;
  int port_ = 0;
};

class RawSocket {
 public:
  explicit RawSocket(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawSocket() {
    if (fd_ >= 0) close(fd_);
  }
  bool connected() const { return connected_; }
  // Stops early if the server accepts nothing for two seconds.
  void Say(std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd p = {fd_, POLLOUT, 0};
      if (poll(&p, 1, 2000) <= 0) return;
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Reads and discards until the connection ends or is silent for `for_ms`.
  void Listen(int for_ms = 50) {
    char buffer[4096];
    pollfd p = {fd_, POLLIN, 0};
    while (poll(&p, 1, for_ms) > 0 && recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT) > 0) continue;
  }

 private:
  int fd_;
  bool connected_ = false;
};

class Hostile : public ::testing::Test {
 protected:
  Hostile() : worker_(server_.address(), 7) {}
  void SetUp() override {
    ASSERT_TRUE(worker_.Enter().ok());
    ExpectHealthy("at the start");
  }
  // The process is alive and the session answers.
  void ExpectHealthy(const std::string& after) {
    ASSERT_TRUE(server_.Alive()) << after;
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(worker_.client->Send(Term(), ShardProgress{ShardId(++pings_), 0, 0}).ok()) << after;
    ASSERT_TRUE(worker_.messages.WaitFor(pings_)) << after;
    EXPECT_EQ(worker_.disconnects.size(), 0u) << after;
    slowest_ = std::max(slowest_, std::chrono::steady_clock::now() - start);
  }
  void TearDown() override {
    RecordProperty("slowest_answer_us", static_cast<int>(slowest_ / std::chrono::microseconds(1)));
  }
  void Attack(const std::string& what, std::string_view bytes) {
    RawSocket socket(server_.port());
    ASSERT_TRUE(socket.connected()) << what;
    socket.Say(bytes);
    socket.Listen();
    ExpectHealthy(what);
  }

  ServerProcess server_;
  WorkerEnd worker_;
  size_t pings_ = 0;
  std::chrono::steady_clock::duration slowest_{};
};

TEST(HostileServer, Serve) {
  if (getenv(kChildVariable) != nullptr) Serve();
}

TEST_F(Hostile, BytesOfOtherProtocols) {
  Attack("nothing", "");
  Attack("HTTP/1", "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  Attack("a TLS hello",
         std::string("\x16\x03\x01\x00\x2e\x01\x00\x00\x2a\x03\x03", 11) + std::string(40, 'r'));
  Attack("zeros", std::string(100'000, '\0'));
  Rng rng(1);
  for (int i = 0; i < 10; ++i) {
    std::string garbage(5000, ' ');
    for (char& c : garbage) c = static_cast<char>(rng.Next());
    Attack("garbage", garbage);
    Attack("garbage after the preface", kPreface + garbage);
  }
}

// CVE-2023-1428: odd values of three headers, followed by more than 8 KB of headers, crashed
// servers of this version of gRPC.
TEST_F(Hostile, OddAndManyHeaders) {
  const std::string start = kPreface + Frame(FrameType::kSettings, 0, 0, "");
  const std::pair<std::string, std::string> odd[] = {{"te", "x"},
                                                     {":scheme", "x"},
                                                     {"grpclb_client_stats", "x"},
                                                     {"grpc-timeout", "x"},
                                                     {"grpc-encoding", "x"},
                                                     {"content-type", "x"},
                                                     {"x-bin", "\xff\xff\xff"},
                                                     {":path", ""}};
  // A hand-made call does reach the server, which refuses it only because its token is missing.
  Attack("a well-formed call", start + Frame(FrameType::kHeaders, kEndHeaders, 1, CallHead({})));
  EXPECT_TRUE(WaitUntil([&] { return server_.Refused() == 1; }));
  const std::string long_text(9000, 'a');
  const std::string published = Header(":method", "POST") + Header(":scheme", "x") +
                                Header(":path", "/millrace.proto.Control/Session") +
                                Header(":authority", "x") + Header("te", "x") +
                                Header("grpclb_client_stats", "x") + Header("long", long_text);
  Attack("CVE-2023-1428", start + Frame(FrameType::kHeaders, kEndHeaders, 1, published));
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& header : odd) {
    all.push_back(header);
    for (const auto& list : {std::vector{header}, std::vector{header, {"long", long_text}},
                             std::vector{{"long", long_text}, header}}) {
      Attack("odd " + header.first,
             start + Frame(FrameType::kHeaders, kEndHeaders, 1, CallHead(list)));
    }
  }
  all.push_back({"long", long_text});
  const std::string head = CallHead(all);
  Attack("all odd", start + Frame(FrameType::kHeaders, kEndHeaders, 1, head));
  // The same in pieces, so that limits are reached in the middle of a header.
  std::string pieces =
      start + Frame(FrameType::kHeaders, 0, 1, std::string_view(head).substr(0, 50));
  for (size_t at = 50; at < head.size(); at += 100) {
    pieces += Frame(FrameType::kContinuation, at + 100 >= head.size() ? kEndHeaders : 0, 1,
                    std::string_view(head).substr(at, 100));
  }
  Attack("all odd, in pieces", pieces);
  std::string many;
  for (int i = 0; i < 300; ++i) many += Header("k" + std::to_string(i), std::string(100, 'v'));
  std::string endless = start + Frame(FrameType::kHeaders, 0, 1, CallHead({}));
  for (int i = 0; i < 200; ++i) {
    endless += Frame(FrameType::kContinuation, 0, 1, std::string_view(many).substr(0, 16000));
  }
  Attack("headers without an end", endless);
}

TEST_F(Hostile, FloodsOfSmallFrames) {
  const std::string start = kPreface + Frame(FrameType::kSettings, 0, 0, "");
  std::string resets = start, pings = start, settings = start;
  const std::string head = CallHead({});
  for (uint32_t i = 0; i < 2000; ++i) {
    resets += Frame(FrameType::kHeaders, kEndHeaders, 2 * i + 1, head) +
              Frame(FrameType::kReset, 0, 2 * i + 1, std::string("\0\0\0\x08", 4));
    pings += Frame(FrameType::kPing, 0, 0, "12345678");
    settings += Frame(FrameType::kSettings, 0, 0, "");
  }
  Attack("rapid resets", resets);
  Attack("pings", pings);
  Attack("settings", settings);
}

TEST_F(Hostile, IdleConnections) {
  std::vector<RawSocket> idle;
  for (int i = 0; i < 100; ++i) {
    idle.emplace_back(server_.port());
    ASSERT_TRUE(idle.back().connected());
    if (i % 2 == 0) idle.back().Say(kPreface);
  }
  ExpectHealthy("while 100 connections do nothing");
  WorkerEnd other(server_.address(), 8);
  EXPECT_TRUE(other.Enter().ok()) << "others may still join";
}

// A client that has the token and ignores all limits.
class RudeSession {
 public:
  explicit RudeSession(const std::string& address,
                       const std::string& protocol = ToText(ProtocolRange())) {
    grpc::ChannelArguments args;
    args.SetMaxSendMessageSize(-1);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
    stub_ = proto::Control::NewStub(channel_);
    context_.AddMetadata("millrace-token", kToken);
    context_.AddMetadata("millrace-protocol", protocol);
    stream_ = stub_->Session(&context_);
  }
  proto::ToController Join() {
    proto::ToController m;
    m.mutable_envelope()->set_incarnation(99);
    m.mutable_envelope()->set_sequence(1);
    m.mutable_join()->mutable_identity();
    m.mutable_join()->mutable_address()->set_incarnation(99);
    m.mutable_join()->set_token(kToken);
    return m;
  }
  bool Say(const proto::ToController& message) { return stream_->Write(message); }
  grpc::Status End() {
    proto::ToWorker answer;
    while (stream_->Read(&answer)) continue;
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToController, proto::ToWorker>> stream_;
};

TEST_F(Hostile, AnotherProtocolVersionIsRefusedWithBothVersions) {
  const std::string mine = ToText(ProtocolRange());
  for (const char* its : {"1", "1000-1001"}) {
    RudeSession rude(server_.address(), its);
    const grpc::Status refused = rude.End();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(refused.error_message().find("protocol version: this process speaks " + mine +
                                           ", the other " + its + "; run"),
              0u)
        << refused.error_message();
  }
  for (const char* its : {"", "4-", "5-4"}) {
    RudeSession rude(server_.address(), its);
    EXPECT_EQ(rude.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION) << its;
  }
  ExpectHealthy("callers of other versions");
}

TEST_F(Hostile, OversizedMessage) {
  RudeSession rude(server_.address());
  proto::ToController join = rude.Join();
  join.mutable_join()->set_device(std::string(wire::kMessageBytesMax + 1, 'x'));
  rude.Say(join);
  EXPECT_EQ(rude.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectHealthy("a message over the size limit");
}

// The same on the stream of echoes.
class RudeEcho {
 public:
  explicit RudeEcho(const std::string& address)
      : stub_(proto::Control::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    context_.AddMetadata("millrace-token", kToken);
    context_.AddMetadata("millrace-protocol", ToText(ProtocolRange()));
    stream_ = stub_->Echo(&context_);
  }
  bool Say(uint64_t sequence, size_t bytes, size_t answer_bytes) {
    proto::EchoMessage message;
    message.mutable_envelope()->set_sequence(sequence);
    message.mutable_echo()->set_content(std::string(bytes, 'x'));
    message.mutable_echo()->set_answer_bytes(static_cast<uint32_t>(answer_bytes));
    return stream_->Write(message);
  }
  grpc::Status End() {
    proto::EchoMessage answer;
    while (stream_->Read(&answer)) continue;
    return stream_->Finish();
  }

 private:
  std::unique_ptr<proto::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::EchoMessage, proto::EchoMessage>> stream_;
};

TEST_F(Hostile, RudeEchoesAreEnded) {
  const std::tuple<uint64_t, size_t, size_t> rude[] = {
      {2, 1, 1}, {1, wire::kEchoBytesMax + 1, 1}, {1, 1, wire::kEchoBytesMax + 1}};
  for (const auto& [sequence, bytes, answer_bytes] : rude) {
    RudeEcho echo(server_.address());
    ASSERT_TRUE(echo.Say(sequence, bytes, answer_bytes));
    EXPECT_EQ(echo.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    ExpectHealthy("an echo that breaks a rule");
  }
  RudeEcho deaf(server_.address());
  uint64_t sequence = 0;
  while (deaf.Say(++sequence, 1, wire::kEchoBytesMax)) ASSERT_LT(sequence, 100'000u);
  EXPECT_NE(deaf.End().error_code(), grpc::StatusCode::OK);
  ExpectHealthy("a worker that does not read its answers");
}

TEST_F(Hostile, AWorkerThatNeverReadsIsDropped) {
  RudeSession rude(server_.address());
  ASSERT_TRUE(rude.Say(rude.Join()));
  proto::ToController flood;
  flood.mutable_envelope()->set_incarnation(99);
  flood.mutable_envelope()->set_sequence(2);
  flood.mutable_pipeline_opened()->mutable_status();
  ASSERT_TRUE(rude.Say(flood));
  EXPECT_TRUE(WaitUntil([&] { return server_.DroppedSlow() == 1; }));
  ExpectHealthy("a worker that does not read");
  rude.End();
}

}  // namespace
}  // namespace millrace::cluster
