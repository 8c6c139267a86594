// Test fixtures of serve: a tiny byte-level tokenizer, a stage that emits a given text, a reply
// that records what is sent, and a server that connects them to a real service over a cluster of
// one worker.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/mutex.h"
#include "cluster/generator.h"
#include "cluster/runtime/local_cluster.h"
#include "net/http/http.h"
#include "serve/service.h"
#include "serve/testing/events.h"
#include "stage/stage.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace::serve {

// 256 bytes, then "th" and "the", then "<|bos|>", "<|eos|>", "<|end|>".
inline constexpr int kTinyVocab = 261;
inline constexpr TokenId kTinyBos = 258;
inline constexpr TokenId kTinyEos = 259;
inline constexpr TokenId kTinyEnd = 260;
std::shared_ptr<const text::Tokenizer> TinyTokenizer();
// `templates` by name; empty: one that shows roles and contents.
std::shared_ptr<const text::ChatTemplate> TinyChatTemplate(
    std::map<std::string, std::string> templates = {});

// The vector of a prompt in the stage below: how many 'a', 'b' and 'c' it has, and 1 for a mean.
std::vector<float> ReciteVector(const std::vector<TokenId>& prompt, Pooling pooling);

// A gate in the stage: while it is closed, no step ends.
class Gate {
 public:
  void Close();
  void Open();
  void Pass();

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ MR_GUARDED_BY(mutex_) = true;
};

// A stage of one layer that generates the tokens of the script for every sequence, and starts again
// at its end. The log-probability of the chosen token is -0.5, or that of its seed if the request
// has kUnlikeSeed; those of the alternatives 1, 2 ... are -1, -2 ... A beam may go on with the
// script's token or with these. It has no KV to read.
inline constexpr uint64_t kUnlikeSeed = 99;

class RecitingStage : public stage::Stage {
 public:
  RecitingStage(std::vector<TokenId> script, Gate* gate);
  LayerRange layers() const override { return {0, 1}; }
  size_t row_bytes() const override { return sizeof(float); }
  std::pair<int, int> kv_heads() const override { return {0, 1}; }
  int model_kv_heads() const override { return 1; }
  stage::StageLimits limits() const override { return {kTinyVocab, 1 << 20, 1 << 20}; }
  Status OpenPipeline(PipelineId, const stage::StagePipeline&) override { return OkStatus(); }
  void ClosePipeline(PipelineId) override {}
  Status Run(std::span<stage::StagePart> parts) override;
  size_t KvBytes(const stage::KvBox& box) const override;
  Status ReadKv(PipelineId pipeline, const stage::KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(PipelineId pipeline, const stage::KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;

  // A sequence whose prompt begins with this token fails in its first step.
  static constexpr TokenId kFailingToken = '\x01';
  // The masks of one whose prompt begins with this token leave nothing after two tokens.
  static constexpr TokenId kStuckToken = '\x02';

 private:
  SequenceResult Answer(const SequenceView& sequence) const;

  const std::vector<TokenId> script_;
  Gate* const gate_;
};

// A reply that records what is sent. It stands for a client, which can disconnect.
class RecordingReply : public net::HttpReply {
 public:
  void Send(net::HttpResponse response) override;
  void Start(net::HttpResponse head) override;
  bool Write(std::string part) override;
  void End() override;
  void OnDisconnect(std::function<void()> callback) override;
  bool disconnected() const override;

  void Disconnect();
  // Disconnects in the Write call number `writes`, as net does with a reader that is too slow.
  void CutAfter(int writes);

  // Waits for the end of the answer; returns false after ten seconds.
  bool WaitDone();
  bool WaitWrites(int count);

  int status() const;
  std::string body() const;  // of a stream: all its parts
  std::string Header(const std::string& name) const;
  int writes() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  net::HttpResponse response_ MR_GUARDED_BY(mutex_);
  int answers_ MR_GUARDED_BY(mutex_) = 0;
  int writes_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<int> cut_after_ MR_GUARDED_BY(mutex_);
  bool done_ MR_GUARDED_BY(mutex_) = false;
  bool disconnected_ MR_GUARDED_BY(mutex_) = false;
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);
};

struct TestServerOptions {
  std::string script = "hello world";
  int max_model_len = 256;
  int num_blocks = 64;
  int max_waiting = 64;
  bool ready = true;
  ServiceOptions service;
  ClusterAdmin* cluster = nullptr;
  SamplingDefaults defaults;
  bool generates = true;
  std::string tool_format, reasoning_format;          // empty: none
  std::string chat_template;                          // empty: TinyChatTemplate's own
  std::map<std::string, std::string> chat_templates;  // further ones, by name
};

// A model that recites the script and ends, writes calls as hermes and reasoning as <think>.
TestServerOptions Reciting(const std::string& script);

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  std::shared_ptr<RecordingReply> Start(
      const std::string& method, const std::string& path, const std::string& body = "",
      std::vector<std::pair<std::string, std::string>> headers = {});
  std::shared_ptr<RecordingReply> Post(const std::string& path, const Json& body);
  // Returns the answer's JSON; fails the test if the status differs.
  Json Call(const std::string& path, const Json& body, int status = 200);
  Json Get(const std::string& path, int status = 200);
  Json AdminGet(const std::string& path, int status = 200);  // on the admin socket
  // Returns the data of every event except "[DONE]", which must be the last.
  std::vector<Json> Stream(const std::string& path, Json body);

  // Uses `engine` if `generator` is null. `earlier`: the recovered requests of the previous run.
  void MakeReady(cluster::Generator* generator = nullptr,
                 cluster::RecoveredRequests* earlier = nullptr);
  // Waits until no request is live and all blocks are free; returns false after ten seconds.
  bool WaitUntilFree();

  std::string peer = "127.0.0.1:51324";  // the caller's address
  Endpoint endpoint = Endpoint::kMain;   // for all calls except AdminGet
  Gate gate;
  SteadyClock clock;
  std::unique_ptr<cluster::LocalCluster> cluster;
  cluster::Generator* engine = nullptr;  // of `cluster`
  std::unique_ptr<Service> service;

 private:
  std::shared_ptr<RecordingReply> Send(Endpoint to, net::HttpRequest request);
  TestServerOptions options_;
};

}  // namespace millrace::serve
