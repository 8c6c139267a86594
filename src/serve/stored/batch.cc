#include "serve/stored/batch.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/task_barrier.h"
#include "serve/http/api_error.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {
namespace {

bool MayBeAskedAgain(int status) { return status == 429 || status == 503; }

}  // namespace

// Takes the answer to one request, which comes as a whole.
class Batch::Reply : public net::HttpReply {
 public:
  using Take = std::function<void(const std::optional<net::HttpResponse>&)>;
  explicit Reply(Take take) : take_(std::move(take)) {}
  ~Reply() override {
    RunTask("a request of a batch", [this] { Give(std::nullopt); });
  }

  void Send(net::HttpResponse response) override { Give(std::move(response)); }
  void Start(net::HttpResponse) override {}  // ParseBatchFile refuses streams
  bool Write(std::string) override { return false; }
  void End() override {}
  void OnDisconnect(std::function<void()>) override {}
  bool disconnected() const override { return false; }

 private:
  void Give(const std::optional<net::HttpResponse>& answer) {
    if (take_) std::exchange(take_, nullptr)(answer);
  }
  Take take_;
};

Json NewBatchObject(const std::string& id, const std::string& endpoint,
                    const std::string& input_file, const std::string& window, int64_t now_s,
                    int64_t expires_s, Json metadata) {
  Json object = {{"id", id},
                 {"object", "batch"},
                 {"endpoint", endpoint},
                 {"errors", nullptr},
                 {"input_file_id", input_file},
                 {"completion_window", window},
                 {"status", "in_progress"},
                 {"output_file_id", nullptr},
                 {"error_file_id", nullptr},
                 {"created_at", now_s},
                 {"in_progress_at", now_s},
                 {"expires_at", expires_s},
                 {"metadata", std::move(metadata)},
                 {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}}};
  for (const char* time : {"finalizing_at", "completed_at", "failed_at", "expired_at",
                           "cancelling_at", "cancelled_at"}) {
    object[time] = nullptr;
  }
  return object;
}

Json FileObject(const std::string& id, size_t bytes, int64_t created_s, const std::string& filename,
                const std::string& purpose) {
  return {{"id", id},
          {"object", "file"},
          {"bytes", bytes},
          {"created_at", created_s},
          {"filename", filename},
          {"purpose", purpose},
          {"status", "processed"}};
}

Batch::Batch(std::string owner, Json object, std::vector<BatchRequest> requests,
             const std::vector<ObjectStore::BatchLine>& done, const BatchHost& host,
             std::function<void()> ended)
    : owner_(std::move(owner)),
      id_(object["id"].get<std::string>()),
      endpoint_(object["endpoint"].get<std::string>()),
      expires_s_(object["expires_at"].get<int64_t>()),
      requests_(std::move(requests)),
      host_(host),
      ended_(std::move(ended)),
      object_(std::move(object)) {
  int failed = 0;
  for (const ObjectStore::BatchLine& line : done) {
    done_.insert(static_cast<int>(line.number));
    failed += line.failed ? 1 : 0;
  }
  object_["request_counts"] = {{"total", requests_.size()},
                               {"completed", done.size() - static_cast<size_t>(failed)},
                               {"failed", failed}};
  if (object_["status"] == Json("cancelling")) stopped_ = "cancelled";
}

void Batch::Start() { Feed(); }

Json Batch::object() const {
  MutexLock lock(mutex_);
  return object_;
}

StoredObject Batch::stored() const {
  MutexLock lock(mutex_);
  return {.kind = ObjectKind::kBatch,
          .owner = owner_,
          .id = id_,
          .created_s = object_["created_at"].get<int64_t>(),
          .open = true,
          .body = DumpJson(object_)};
}

void Batch::Stop(const char* status) {
  if (stopped_.empty()) stopped_ = status;
}

void Batch::Cancel() {
  {
    MutexLock lock(mutex_);
    if (finishing_) return;
    Stop("cancelled");
    if (object_["cancelling_at"].is_null()) {
      object_["cancelling_at"] = host_.now_s();
      object_["status"] = "cancelling";
    }
  }
  Feed();  // it may have nothing that runs
}

// Puts requests into the queue, as many as may be there; at the end of all of them, finishes.
void Batch::Feed() {
  std::vector<size_t> starting;
  bool finish = false;
  {
    MutexLock lock(mutex_);
    if (host_.now_s() >= expires_s_) Stop("expired");
    while (stopped_.empty() && !left_ && running_ < kBatchRequestsRunningMax &&
           next_ < requests_.size()) {
      const size_t index = next_++;
      if (done_.contains(requests_[index].number)) continue;
      ++running_;
      starting.push_back(index);
    }
    const bool over = next_ == requests_.size() || !stopped_.empty();
    finish = over && running_ == 0 && !left_ && !finishing_;
    if (finish) finishing_ = true;
  }
  for (const size_t index : starting) {
    host_.queue.Post(
        owner_, requests_[index].body.size(),
        [self = shared_from_this(), index](const EndJob& end) { self->Run(index, end); });
  }
  if (finish) host_.on_disk_soon([self = shared_from_this()] { self->Finish(); });
}

void Batch::Run(size_t index, const EndJob& end) {
  const bool stopped = [this] {
    MutexLock lock(mutex_);
    if (host_.now_s() >= expires_s_) Stop("expired");
    if (!stopped_.empty()) --running_;
    return !stopped_.empty();
  }();
  if (stopped) {
    end(BackgroundQueue::End::kDone);
    return Feed();
  }
  Call call;
  call.reply = std::make_shared<Reply>(  // first: it ends the request if the rest throws
      [self = shared_from_this(), index, end](const std::optional<net::HttpResponse>& answer) {
        self->TakeAnswer(index, answer, end);
      });
  call.request.method = "POST";
  call.request.path = endpoint_;
  call.request.body = requests_[index].body;
  call.request_id = fmt::format("{}_{}", id_, requests_[index].number);
  call.owner = owner_;
  call.in_background = true;
  host_.call(std::move(call));
}

void Batch::TakeAnswer(size_t index, const std::optional<net::HttpResponse>& answer,
                       const EndJob& end) {
  if (answer && MayBeAskedAgain(answer->status)) return end(BackgroundQueue::End::kTryAgain);
  const std::string& id = requests_[index].custom_id;
  if (answer) {
    const Json body = Json::parse(answer->body, nullptr, false);
    std::string ignored;
    for (const auto& [name, value] : answer->headers) {
      if (name == kIgnoredHeader) ignored = value;
    }
    return TakeResult(index, answer->status != 200,
                      BatchResultLine(id, answer->status, body, ignored), end);
  }
  if (host_.draining()) {
    MutexLock lock(mutex_);
    left_ = true;
    --running_;
  } else {
    return TakeResult(index, true, BatchErrorLine(id, "server_error", "The request got no answer."),
                      end);
  }
  end(BackgroundQueue::End::kDone);
  Feed();
}

// Stores the line where it may wait for the disk.
void Batch::TakeResult(size_t index, bool failed, const Json& line, const EndJob& end) {
  const StoredBatchLine stored{
      .number = requests_[index].number, .failed = failed, .text = DumpJson(line) + "\n"};
  const auto self = shared_from_this();
  host_.store_patiently(
      [self, stored] { return self->host_.store.PutBatchLine(self->id_, stored); },
      [self, stored, end](const Status& put) {
        self->Stored(stored, put);
        end(BackgroundQueue::End::kDone);
        self->Feed();
      });
}

void Batch::Stored(const StoredBatchLine& line, const Status& put) {
  MutexLock lock(mutex_);
  --running_;
  if (!put.ok()) {
    failure_ = put.message();
    Stop("failed");
    return;
  }
  done_.insert(static_cast<int>(line.number));
  Json& count = object_["request_counts"][line.failed ? "failed" : "completed"];
  count = count.get<int>() + 1;
}

// The output file and the error file, as far as there is anything in them, and their ids.
std::vector<StoredObject> Batch::ResultFiles(const std::string& status, Json& object) const {
  std::string outputs, errors;
  std::set<int64_t> done;
  const auto lines = host_.store.BatchLines(id_);
  if (!lines.ok()) MR_LOG(error, "the results of {}: {}", id_, lines.status().message());
  for (const auto& line : lines.ok() ? *lines : std::vector<ObjectStore::BatchLine>()) {
    (line.failed ? errors : outputs) += line.text;
    done.insert(line.number);
  }
  for (const BatchRequest& request : requests_) {
    const bool expired = status == "expired";
    if (done.contains(request.number) || (!expired && status != "completed")) continue;
    const Json line = expired ? BatchErrorLine(request.custom_id, "batch_expired",
                                               "The batch reached its end before this request.")
                              : BatchErrorLine(request.custom_id, "server_error",
                                               "The stored result is damaged: ask again.");
    errors += DumpJson(line) + "\n";
  }
  std::vector<StoredObject> files;
  const int64_t now_s = host_.now_s();
  for (const auto& [kind, text] : {std::pair("output", &outputs), std::pair("error", &errors)}) {
    if (text->empty()) continue;
    // The same name when a server that died here is followed by another.
    const std::string id = fmt::format("file-{}-{}", id_, kind);
    const Json file =
        FileObject(id, text->size(), now_s, fmt::format("{}_{}.jsonl", id_, kind), "batch_output");
    files.push_back({.kind = ObjectKind::kFile,
                     .owner = owner_,
                     .id = id,
                     .created_s = now_s,
                     .body = DumpJson(file),
                     .content = std::move(*text)});
    object[std::string(kind) + "_file_id"] = id;
  }
  return files;
}

void Batch::Finish() {
  Json object;
  std::string status, failure;
  {
    MutexLock lock(mutex_);
    object = object_;
    status = stopped_.empty() ? "completed" : stopped_;
    failure = failure_;
  }
  std::vector<StoredObject> files = ResultFiles(status, object);
  const int64_t now_s = host_.now_s();
  object["finalizing_at"] = now_s;
  StoredObject batch = stored();
  batch.open = false;
  const auto put = [&] {
    if (!failure.empty()) {
      status = "failed";
      const Json error = {
          {"code", "store_full"}, {"message", failure}, {"line", nullptr}, {"param", nullptr}};
      object["errors"] = {{"object", "list"}, {"data", Json::array({error})}};
    }
    object["status"] = status;
    object[status + "_at"] = now_s;
    batch.body = DumpJson(object);
    return host_.store.PutEndedBatch(batch, files);
  };
  Status stored = put();
  if (!stored.ok() && failure.empty()) {
    failure = stored.message();
    files.clear();
    object["output_file_id"] = object["error_file_id"] = nullptr;
    stored = put();
  }
  if (!stored.ok()) MR_LOG(error, "the end of {} is not stored: {}", id_, stored.message());
  {
    MutexLock lock(mutex_);
    object_ = object;
  }
  ended_();
}

}  // namespace millrace::serve
