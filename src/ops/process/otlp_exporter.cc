#include "ops/process/otlp_exporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace millrace::ops {
namespace {

constexpr std::chrono::milliseconds kGather(500);  // spans that come within it share a batch
constexpr Duration kAnswerLimit = Duration::Seconds(5);
constexpr Duration kWarnEvery = Duration::Seconds(60);
constexpr size_t kCollectorAnswerBytesMax = 64 << 10;
constexpr int kStatusOkMin = 200, kStatusOkMax = 299;

}  // namespace

Result<net::Url> TracesUrl(const std::string& endpoint) {
  MR_ASSIGN_OR_RETURN(const net::Url base, net::ParseUrl(endpoint));
  return base.Join("/v1/traces");
}

std::string TracesBody(const std::vector<Json>& spans, const std::string& version) {
  const auto attribute = [](const char* key, const std::string& value) {
    return Json{{"key", key}, {"value", {{"stringValue", value}}}};
  };
  const Json resource = {{"attributes", Json::array({attribute("service.name", "millrace"),
                                                     attribute("service.version", version)})}};
  const Json scope = {{"scope", {{"name", "millrace"}, {"version", version}}}, {"spans", spans}};
  return DumpJson({{"resourceSpans", Json::array({{{"resource", resource},
                                                   {"scopeSpans", Json::array({scope})}}})}});
}

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::Start(const std::string& endpoint,
                                                          std::string version, const Clock& clock) {
  MR_ASSIGN_OR_RETURN(net::Url url, TracesUrl(endpoint));
  std::unique_ptr<OtlpExporter> exporter(
      new OtlpExporter(std::move(url), std::move(version), clock));
  net::HttpClientOptions options;
  options.connect_timeout = kAnswerLimit;
  options.read_timeout = kAnswerLimit;
  options.body_bytes_max = kCollectorAnswerBytesMax;
  MR_ASSIGN_OR_RETURN(exporter->http_, net::HttpClient::Start(options));
  exporter->thread_ = std::thread([raw = exporter.get()] { raw->Run(); });
  return exporter;
}

OtlpExporter::~OtlpExporter() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void OtlpExporter::Send(std::vector<Json> spans) {
  {
    MutexLock lock(mutex_);
    if (waiting_.size() + spans.size() > kSpansWaitingMax) {
      counters_.dropped += spans.size();
      return;
    }
    std::ranges::move(spans, std::back_inserter(waiting_));
  }
  changed_.notify_all();
}

serve::SpanCounters OtlpExporter::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

void OtlpExporter::Run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
    changed_.wait_for(lock, kGather, [this]() MR_REQUIRES(mutex_) {
      return stopping_ || waiting_.size() >= kSpansPerBatchMax;
    });
    if (waiting_.empty()) return;
    const auto count = static_cast<ptrdiff_t>(std::min(waiting_.size(), kSpansPerBatchMax));
    const std::vector<Json> batch(std::make_move_iterator(waiting_.begin()),
                                  std::make_move_iterator(waiting_.begin() + count));
    waiting_.erase(waiting_.begin(), waiting_.begin() + count);
    lock.unlock();
    const Status sent = Post(batch);
    if (!sent.ok()) Warn(sent.message());
    lock.lock();
    (sent.ok() ? counters_.sent : counters_.dropped) += batch.size();
    if (sent.ok() || !stopping_) continue;
    counters_.dropped += waiting_.size();
    return;
  }
}

Status OtlpExporter::Post(const std::vector<Json>& batch) {
  net::HttpCall call;
  call.method = "POST";
  call.url = url_;
  call.headers = {{"Content-Type", "application/json"}};
  call.body = TracesBody(batch, version_);
  MR_ASSIGN_OR_RETURN(const net::HttpResponse response, http_->Call(std::move(call)));
  if (response.status >= kStatusOkMin && response.status <= kStatusOkMax) return OkStatus();
  return Unavailable(fmt::format("it answered with status {}", response.status));
}

void OtlpExporter::Warn(const std::string& why) {
  const Time now = clock_.Now();
  if (warned_ && now - *warned_ < kWarnEvery) return;
  warned_ = now;
  MR_LOG(warn, "spans are dropped, because the collector at {} does not take them: {}",
         url_.ToString(), Printable(why));
}

}  // namespace millrace::ops
