// The control plane runs ahead of the data plane (Orca, section 4.2): step plans reach every stage
// before the activations they apply to. Neither slow kernels nor a stalled data link delay
// heartbeats and aborts.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "cluster/link/testing/link_harness.h"
#include "cluster/runtime/controller_process.h"
#include "cluster/runtime/local_cluster.h"
#include "cluster/runtime/testing/net_worker.h"

namespace millrace::cluster {
namespace {

// A kernel that blocks until the test opens the gate.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    inside_ = true;
    changed_.wait(lock, [this] { return open_; });
  }
  bool inside() {
    std::lock_guard lock(mutex_);
    return inside_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, inside_ = false;
};

class GatedStage : public stage::HashStage {
 public:
  GatedStage(LayerRange layers, Gate& gate) : HashStage(testing::kModel, layers), gate_(gate) {}
  Status Run(std::span<stage::StagePart> parts) override {
    gate_.Pass();
    return HashStage::Run(parts);
  }

 private:
  Gate& gate_;
};

ControllerHostOptions Options(int stages) {
  ControllerHostOptions options;
  ControllerOptions& c = options.controller;
  c.term = Term(1);
  c.model = "hashes";
  c.num_layers = testing::kModel.num_layers;
  c.shape.stages = stages;
  c.scheduler.block_size = 4;
  c.scheduler.max_num_seqs = 8;
  c.scheduler.max_num_batched_tokens = 32;
  c.scheduler.max_model_len = 4000;
  return options;
}

// Submits one request and collects its output.
class Client {
 public:
  void Ask(ControllerHost& host, TokenId first, int max_tokens) {
    GenerationRequest request;
    request.prompt = {first, 2, 3, 4, 5};
    request.params.max_tokens = max_tokens;
    request.params.seed = 9;
    request.params.ignore_eos = true;
    asked_ = request;
    const auto id = host.Submit(request, [this](RequestOutput&& output) {
      std::lock_guard lock(mutex_);
      tokens_.insert(tokens_.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish) finish_ = output.finish;
    });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    id_ = *id;
  }
  RequestId id() const { return id_; }
  size_t delivered() {
    std::lock_guard lock(mutex_);
    return tokens_.size();
  }
  std::optional<FinishReason> finish() {
    std::lock_guard lock(mutex_);
    return finish_;
  }
  void ExpectReference() {
    ASSERT_TRUE(testing::WaitUntil([this] { return finish().has_value(); }));
    std::lock_guard lock(mutex_);
    EXPECT_EQ(tokens_, stage::HashReference(testing::kModel, asked_.prompt, asked_.params,
                                            SequenceSeed(*asked_.params.seed, 0),
                                            *asked_.params.max_tokens));
  }

 private:
  GenerationRequest asked_;
  RequestId id_;
  std::mutex mutex_;
  std::vector<TokenId> tokens_;
  std::optional<FinishReason> finish_;
};

TEST(ControlPlane, TheStepPlanReachesTheLastStageWhileTheFirstComputes) {
  const SteadyClock clock;
  Gate gate;
  Client client;
  auto cluster = LocalCluster::Start(Options(3), clock);
  ASSERT_TRUE(cluster.ok());
  for (const char* name : {"a", "b", "c"}) {
    Join join;
    join.name = name;
    (*cluster)->AddWorker(
        std::move(join), [&gate](const LoadShard& load, const auto&, const auto&) {
          LoadedShard loaded;
          if (load.layers.begin == 0) {
            loaded.stage = std::make_shared<GatedStage>(load.layers, gate);
          } else {
            loaded.stage = std::make_shared<stage::HashStage>(testing::kModel, load.layers);
          }
          loaded.facts.kv_bytes_per_token_layer = 1;
          loaded.facts.kv_bytes = int64_t{4000} * load.layers.size();
          return loaded;
        });
  }
  client.Ask((*cluster)->host(), 1, 6);
  ASSERT_TRUE(testing::WaitUntil([&] { return gate.inside(); }));
  int64_t waiting = 0;
  EXPECT_TRUE(testing::WaitUntil([&] {
    waiting = 0;
    for (const char* name : {"a", "b", "c"}) {
      waiting += (*cluster)->worker(name)->MakeHeartbeat().queued_steps;
    }
    return waiting >= 2;
  })) << "only "
      << waiting << " of the two stages after the first have the plan";
  EXPECT_EQ(client.delivered(), 0u);
  gate.Open();
  client.ExpectReference();
}

// A TCP relay that stops forwarding on request, like a link that drops every packet. Neither end
// gets an error.
class Relay {
 public:
  // Listens on `from`:port (any port when 0) and forwards to `to`:port.
  Relay(const char* from, const char* to, uint16_t port = 0) : to_(to) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(from, port);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    sockaddr_in bound{};
    socklen_t size = sizeof bound;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = ntohs(bound.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
    for (const int fd : ends_) close(fd);
    close(listener_);
  }
  uint16_t port() const { return port_; }
  void Stall(bool stalled) { stalled_ = stalled; }

 private:
  static sockaddr_in Address(const char* host, uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, host, &address.sin_addr);
    return address;
  }
  void Run() {
    while (!stop_) {
      std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
      if (!stalled_) {
        for (const int fd : ends_) polled.push_back({fd, POLLIN, 0});
      }
      poll(polled.data(), polled.size(), /*timeout_ms=*/5);
      if (stalled_) continue;
      if (polled[0].revents != 0) Accept();
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents != 0) Pump(i - 1);
      }
    }
  }
  void Accept() {
    const int in = accept(listener_, nullptr, nullptr);
    const int out = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(to_, port_);
    if (connect(out, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      close(in);
      close(out);
      return;
    }
    ends_.insert(ends_.end(), {in, out});
  }
  // Sockets are in pairs. When one has ended, both are shut down; they are closed with the relay.
  void Pump(size_t i) {
    std::array<char, 65536> bytes;
    const int other = ends_[i ^ 1];
    const ssize_t n = read(ends_[i], bytes.data(), bytes.size());
    if (n <= 0) {
      shutdown(ends_[i], SHUT_RDWR);
      shutdown(other, SHUT_RDWR);
      return;
    }
    for (ssize_t sent = 0; sent < n;) {
      const ssize_t m = send(other, bytes.data() + sent, n - sent, MSG_NOSIGNAL);
      if (m <= 0) return;
      sent += m;
    }
  }

  const char* const to_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_ = false, stalled_ = false;
  std::vector<int> ends_;  // used by thread_ only
  std::thread thread_;
};

TEST(ControlPlane, AStalledDataLinkDelaysNeitherHeartbeatsNorAborts) {
  const SteadyClock clock;
  Client stays, leaves;
  ControllerHostOptions options = Options(2);
  options.controller.silent_limit = Duration::Seconds(1);
  ControlServerOptions server_options;
  server_options.security.token = testing::kToken;
  auto server = ControllerProcess::Start(std::move(options), std::move(server_options), clock);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  ControllerHost& host = (*server)->host();

  // Each worker advertises the address of its relays, so peers reach it only through them.
  struct Member {
    Relay data, control;
    testing::Worker worker;
    Member(const std::string& name, const char* own, const char* advertised, int port,
           const Clock& c)
        : data(advertised, own),
          control(advertised, own),
          worker(Behind(name, own, advertised, port, data.port(), control.port()), c) {}
    static WorkerProcessOptions Behind(const std::string& name, const char* own,
                                       const char* advertised, int port, uint16_t data,
                                       uint16_t control) {
      WorkerProcessOptions o = testing::WorkerOptions(name, port);
      o.data_host = own;
      o.data_port = data;
      o.control_address = std::string(own) + ":" + std::to_string(control);
      o.advertised_host = advertised;
      return o;
    }
  };
  Member a("a", "127.0.0.2", "127.0.0.3", (*server)->port(), clock);
  Member b("b", "127.0.0.4", "127.0.0.5", (*server)->port(), clock);

  stays.Ask(host, 1, 400);
  leaves.Ask(host, 2, 1100);
  ASSERT_TRUE(testing::WaitUntil([&] { return stays.delivered() > 5 && leaves.delivered() > 5; }));
  a.data.Stall(true);
  b.data.Stall(true);
  // No more tokens are delivered, but heartbeats arrive and no worker counts as lost.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const size_t delivered = stays.delivered();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(stays.delivered(), delivered);
  EXPECT_EQ(host.Describe().counters.workers_lost, 0u);
  // An abort is reported at once.
  const Time asked = clock.Now();
  host.Abort(leaves.id());
  ASSERT_TRUE(testing::WaitUntil([&] { return leaves.finish() == FinishReason::kAbort; }));
  EXPECT_LT(clock.Now() - asked, Duration::Seconds(0.5));
  EXPECT_EQ(stays.delivered(), delivered);
  a.data.Stall(false);
  b.data.Stall(false);
  stays.ExpectReference();
  EXPECT_EQ(host.Describe().counters.pipelines_lost, 0u);
}

}  // namespace
}  // namespace millrace::cluster
