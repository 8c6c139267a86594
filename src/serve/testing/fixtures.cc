#include "serve/testing/fixtures.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cluster/runtime/one_worker.h"
#include "core/no_token_left.h"
#include "text/token_table.h"

namespace millrace::serve {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);  // a sanitizer on a busy machine is slow

std::string Utf8(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// The printable character that represents a byte in byte-level vocabularies (GPT-2's table).
std::string ByteSymbol(int byte) {
  auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return Utf8(static_cast<uint32_t>(byte));
  uint32_t rank = 0;
  for (int b = 0; b < byte; ++b) rank += printable(b) ? 0 : 1;
  return Utf8(256 + rank);
}

Json TinyTokenizerJson() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSymbol(byte)] = byte;
  vocab["th"] = 256;
  vocab["the"] = 257;
  Json added = Json::array();
  const std::pair<TokenId, const char*> specials[] = {
      {kTinyBos, "<|bos|>"}, {kTinyEos, "<|eos|>"}, {kTinyEnd, "<|end|>"}};
  for (const auto& [id, content] : specials) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", Json::array({"t h", "th e"})}}}};
}

}  // namespace

std::shared_ptr<const text::Tokenizer> TinyTokenizer() {
  static const std::shared_ptr<const text::Tokenizer> tokenizer = [] {
    auto loaded = text::Tokenizer::FromJson(TinyTokenizerJson().dump());
    MR_CHECK(loaded.ok()) << loaded.status().ToString();
    return std::move(loaded).value();
  }();
  return tokenizer;
}

std::shared_ptr<const text::ChatTemplate> TinyChatTemplate(
    std::map<std::string, std::string> templates) {
  text::TokenizerConfig config;
  config.chat_templates["default"] =
      "{% for m in messages %}{% if m.content == 'refused' %}{{ raise_exception('refused') }}"
      "{% endif %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
      "{% if tools %}tools:{{ tools | tojson }}{% endif %}"
      "{% if tone %}tone:{{ tone }}{% endif %}"
      "{% if add_generation_prompt %}assistant:{% endif %}";
  if (!templates.empty()) config.chat_templates = std::move(templates);
  auto made = text::ChatTemplate::FromConfig(config, TinyTokenizer()->special_tokens());
  MR_CHECK(made.ok()) << made.status().ToString();
  return std::shared_ptr<const text::ChatTemplate>(std::move(made).value());
}

void Gate::Close() {
  MutexLock lock(mutex_);
  open_ = false;
}

void Gate::Open() {
  MutexLock lock(mutex_);
  open_ = true;
  opened_.notify_all();
}

void Gate::Pass() {
  MutexLock lock(mutex_);
  opened_.wait(lock, [this]() MR_REQUIRES(mutex_) { return open_; });
}

std::vector<float> ReciteVector(const std::vector<TokenId>& prompt, Pooling pooling) {
  std::vector<float> vector;
  for (const TokenId letter : {'a', 'b', 'c'}) {
    vector.push_back(static_cast<float>(std::ranges::count(prompt, letter)));
  }
  vector.push_back(pooling == Pooling::kMean ? 1.0f : 0.0f);
  return vector;
}

RecitingStage::RecitingStage(std::vector<TokenId> script, Gate* gate)
    : script_(std::move(script)), gate_(gate) {}

size_t RecitingStage::KvBytes(const stage::KvBox&) const { return 0; }

Status RecitingStage::ReadKv(PipelineId, const stage::KvBox&, std::span<const BlockIndex>,
                             std::span<std::byte>) const {
  return Unimplemented("no KV");
}

Status RecitingStage::WriteKv(PipelineId, const stage::KvBox&, std::span<const BlockIndex>,
                              std::span<const std::byte>) {
  return Unimplemented("no KV");
}

Status RecitingStage::Run(std::span<stage::StagePart> parts) {
  if (gate_ != nullptr) gate_->Pass();
  for (stage::StagePart& part : parts) {
    part.result = {.id = part.plan->id};
    for (const SequenceView& sequence : part.sequences) {
      part.result.sequences.push_back(Answer(sequence));
    }
  }
  return OkStatus();
}

SequenceResult RecitingStage::Answer(const SequenceView& sequence) const {
  const auto& prompt = *sequence.started->prompt;
  const SamplingParams& params = *sequence.started->params;
  SequenceResult result{.id = sequence.id};
  auto logprobs = [](TokenId chosen, int top) {
    PositionLogprobs position{.chosen = {.token = chosen, .logprob = -0.5f, .rank = 1}};
    for (int i = 1; i <= top; ++i) {
      position.top.push_back({.token = TokenId{'a'} + i, .logprob = -1.0f * i, .rank = i});
    }
    return position;
  };
  if (sequence.logits == LogitsWanted::kAll) {
    for (int at = sequence.start + 1; at <= sequence.end(); ++at) {
      if (at >= static_cast<int>(prompt.size())) break;
      result.prompt_logprobs.push_back(
          logprobs(prompt[static_cast<size_t>(at)], params.prompt_logprobs.value_or(0)));
    }
  }
  if (sequence.logits == LogitsWanted::kNone) return result;
  const auto output = static_cast<size_t>(sequence.end()) - prompt.size();
  if (prompt.front() == kFailingToken) {
    result.error = Internal("logits are not numbers at /secret/path");
    return result;
  }
  if (prompt.front() == kStuckToken && output == 2) {
    result.error = NoTokenLeft("none");
    return result;
  }
  if (params.pools()) {
    result.pooled = ReciteVector(prompt, params.pooling);
    return result;
  }
  result.token = script_[output % script_.size()];
  if (params.beam_search) {
    result.logprobs = logprobs(*result.token, params.n);
    result.logprobs->top.insert(result.logprobs->top.begin(), result.logprobs->chosen);
  } else if (params.logprobs) {
    result.logprobs = logprobs(*result.token, *params.logprobs);
    for (const TokenId token : params.logprob_token_ids) {
      result.logprobs->top.push_back({token, -20.0f, 200});
    }
    if (params.seed == kUnlikeSeed) {
      result.logprobs->chosen.logprob = -static_cast<float>(UnitDouble(sequence.started->seed));
    }
  }
  return result;
}

void RecordingReply::Send(net::HttpResponse response) {
  MutexLock lock(mutex_);
  ++answers_;
  EXPECT_EQ(answers_, 1) << "a request is answered once";
  if (!disconnected_) response_ = std::move(response);
  done_ = true;
  changed_.notify_all();
}

void RecordingReply::Start(net::HttpResponse head) {
  MutexLock lock(mutex_);
  ++answers_;
  EXPECT_EQ(answers_, 1) << "a request is answered once";
  response_ = std::move(head);
}

bool RecordingReply::Write(std::string part) {
  std::function<void()> gone;
  {
    MutexLock lock(mutex_);
    if (disconnected_) return false;
    ++writes_;
    response_.body += part;
    changed_.notify_all();
    if (!cut_after_ || writes_ < *cut_after_) return true;
    disconnected_ = true;
    gone = std::move(on_disconnect_);
  }
  if (gone) gone();
  return false;
}

void RecordingReply::End() {
  MutexLock lock(mutex_);
  done_ = true;
  on_disconnect_ = nullptr;
  changed_.notify_all();
}

void RecordingReply::OnDisconnect(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (!disconnected_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool RecordingReply::disconnected() const {
  MutexLock lock(mutex_);
  return disconnected_;
}

void RecordingReply::Disconnect() {
  std::function<void()> callback;
  {
    MutexLock lock(mutex_);
    if (done_ || disconnected_) return;
    disconnected_ = true;
    callback = std::move(on_disconnect_);
  }
  if (callback) callback();
}

void RecordingReply::CutAfter(int writes) {
  MutexLock lock(mutex_);
  cut_after_ = writes;
}

bool RecordingReply::WaitDone() {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock, kTimeout, [this]() MR_REQUIRES(mutex_) { return done_; });
}

bool RecordingReply::WaitWrites(int count) {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock, kTimeout,
                           [&]() MR_REQUIRES(mutex_) { return writes_ >= count || done_; });
}

int RecordingReply::status() const {
  MutexLock lock(mutex_);
  return response_.status;
}

std::string RecordingReply::body() const {
  MutexLock lock(mutex_);
  return response_.body;
}

std::string RecordingReply::Header(const std::string& name) const {
  MutexLock lock(mutex_);
  std::string found;
  for (const auto& [key, value] : response_.headers) {
    if (key == name) found = value;
  }
  return found;
}

int RecordingReply::writes() const {
  MutexLock lock(mutex_);
  return writes_;
}

static Json JsonOf(RecordingReply& reply, const std::string& path, int status) {
  EXPECT_TRUE(reply.WaitDone()) << path;
  EXPECT_EQ(reply.status(), status) << reply.body();
  auto parsed = ParseJson(reply.body());
  EXPECT_TRUE(parsed.ok()) << reply.body();
  return parsed.ok() ? *parsed : Json();
}

TestServer::TestServer(TestServerOptions options) : options_(std::move(options)) {
  auto script = TinyTokenizer()->Encode(options_.script, {.parse_special = true});
  MR_CHECK(script.ok()) << script.status().ToString();
  cluster::ControllerHostOptions host;
  host.controller.num_layers = 1;
  host.controller.waiting_max = options_.max_waiting;
  sched::SchedulerOptions& scheduler = host.controller.scheduler;
  scheduler.max_model_len = options_.max_model_len;
  scheduler.max_waiting = options_.max_waiting;
  scheduler.max_num_batched_tokens = 512;
  scheduler.max_num_seqs = 32;
  scheduler.eos_token_ids = {kTinyEos};
  host.controller.token_table =
      text::TokenTableOf(*TinyTokenizer(), scheduler.eos_token_ids).value();
  auto started = cluster::StartOneWorker(std::move(host),
                                         {.stage = std::make_shared<RecitingStage>(*script, &gate),
                                          .kv_bytes_per_token = 16,
                                          .num_blocks = options_.num_blocks},
                                         clock);
  MR_CHECK(started.ok()) << started.status().ToString();
  cluster = std::move(started).value();
  engine = &cluster->host();
  ServiceOptions service_options = options_.service;
  if (service_options.served_names.empty()) service_options.served_names = {"tiny"};
  service_options.version = "1.2.3";
  service = std::make_unique<Service>(std::move(service_options), clock);
  if (options_.ready) MakeReady();
}

TestServer::~TestServer() {
  gate.Open();
  service->Drain(Duration{});
}

void TestServer::MakeReady(cluster::Generator* generator, cluster::RecoveredRequests* earlier) {
  ServedModel model;
  model.engine = generator != nullptr ? generator : engine;
  model.cluster = options_.cluster;
  model.earlier = earlier;
  model.tokenizer = TinyTokenizer();
  const std::vector<TokenId> ends = {kTinyEos};
  model.grammars = text::Grammars::Of(text::TokenTableOf(*model.tokenizer, ends).value());
  std::map<std::string, std::string> templates = options_.chat_templates;
  if (!options_.chat_template.empty()) templates["default"] = options_.chat_template;
  model.chat_template = TinyChatTemplate(std::move(templates));
  model.tool_format = text::FindToolFormat(options_.tool_format);
  model.reasoning_format = text::FindReasoningFormat(options_.reasoning_format);
  model.spec.vocab_size = kTinyVocab;
  model.spec.generates = options_.generates;
  model.end_tokens = ends;
  model.spec.embedding_size = static_cast<int>(ReciteVector({}, Pooling::kLast).size());
  model.max_model_len = options_.max_model_len;
  model.defaults = options_.defaults;
  model.cache_config = {{"block_size", "16"}};
  service->Ready(std::move(model));
}

namespace {

std::string QueryOf(const std::string& target) {
  const size_t mark = target.find('?');
  return mark == std::string::npos ? "" : target.substr(mark + 1);
}

}  // namespace

std::shared_ptr<RecordingReply> TestServer::Start(
    const std::string& method, const std::string& path, const std::string& body,
    std::vector<std::pair<std::string, std::string>> headers) {
  return Send(endpoint, {.method = method,
                         .path = path.substr(0, path.find('?')),
                         .query = QueryOf(path),
                         .headers = std::move(headers),
                         .body = body,
                         .peer = peer});
}

std::shared_ptr<RecordingReply> TestServer::Send(Endpoint to, net::HttpRequest request) {
  auto reply = std::make_shared<RecordingReply>();
  service->Handler(to)(std::move(request), reply);
  return reply;
}

std::shared_ptr<RecordingReply> TestServer::Post(const std::string& path, const Json& body) {
  return Start("POST", path, DumpJson(body), {{"Content-Type", "application/json"}});
}

Json TestServer::Call(const std::string& path, const Json& body, int status) {
  return JsonOf(*Post(path, body), path, status);
}

Json TestServer::Get(const std::string& path, int status) {
  return JsonOf(*Start("GET", path), path, status);
}

Json TestServer::AdminGet(const std::string& path, int status) {
  auto reply = Send(Endpoint::kAdminSocket, {.method = "GET",
                                             .path = path.substr(0, path.find('?')),
                                             .query = QueryOf(path),
                                             .headers = {},
                                             .body = "",
                                             .peer = "process 1 of user 1"});
  return JsonOf(*reply, path, status);
}

std::vector<Json> TestServer::Stream(const std::string& path, Json body) {
  body["stream"] = true;
  auto reply = Post(path, body);
  EXPECT_TRUE(reply->WaitDone()) << path;
  EXPECT_EQ(reply->status(), 200) << reply->body();
  return ParseEvents(reply->body());
}

bool TestServer::WaitUntilFree() {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    const sched::SchedulerStats stats = engine->Stats().scheduler;
    if (stats.running + stats.waiting + stats.swapped == 0 &&
        stats.blocks_free == stats.blocks_total) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TestServerOptions Reciting(const std::string& script) {
  TestServerOptions options;
  options.script = script + "<|eos|>";
  options.max_model_len = 1024;
  options.tool_format = "hermes";
  options.reasoning_format = "think";
  return options;
}

}  // namespace millrace::serve
