#include "serve/stored/batch_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/log.h"
#include "serve/http/limits.h"
#include "serve/request/field_reader.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/stored/multipart.h"
#include "serve/stored/stored_json.h"

namespace millrace::serve {
namespace {

constexpr std::array kEndpoints = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                   "/v1/embeddings"};
constexpr int64_t kHour_s = 3600;
constexpr int kWindowHoursMax = 168;
constexpr int kListedUsually = 20;
constexpr std::string_view kContent = "/content", kCancel = "/cancel";

void Refuse(const Call& call, const ApiError& error) { call.reply->Send(ErrorResponse(error)); }

ApiError ErrorOf(const Status& status) { return StoredError(status); }

// The status of a new batch whose file cannot be run.
void Fail(Json& object, int64_t now_s, const std::vector<BatchError>& errors) {
  Json list = Json::array();
  for (const BatchError& error : errors) {
    list.push_back({{"code", error.code},
                    {"message", error.message},
                    {"line", error.number > 0 ? Json(error.number) : Json()},
                    {"param", nullptr}});
  }
  object["status"] = "failed";
  object["failed_at"] = now_s;
  object["errors"] = {{"object", "list"}, {"data", std::move(list)}};
}

StoredObject EndedBatch(const std::string& owner, const Json& object) {
  return {.kind = ObjectKind::kBatch,
          .owner = owner,
          .id = object["id"].get<std::string>(),
          .created_s = object["created_at"].get<int64_t>(),
          .body = DumpJson(object)};
}

// "24h", as OpenAI has it, or another number of hours.
std::optional<int> HoursOf(const std::string& window) {
  int hours = 0;
  const char* const end = window.data() + window.size();
  const auto read = std::from_chars(window.data(), end, hours);
  const bool whole = read.ec == std::errc() && read.ptr + 1 == end && *read.ptr == 'h';
  if (!whole || hours < 1 || hours > kWindowHoursMax) return std::nullopt;
  return hours;
}

struct ListOptions {
  int limit = kListedUsually;
  std::string after, purpose;
};

Parsed<ListOptions> ReadListOptions(const net::HttpRequest& request) {
  const auto query = net::ParseQuery(request.query);
  if (!query.ok()) return BadField("query", query.status().message());
  ListOptions options;
  for (const auto& [name, value] : *query) {
    if (name == "after") options.after = value;
    if (name == "purpose") options.purpose = value;
    if (name != "limit") continue;
    const char* const end = value.data() + value.size();
    const auto read = std::from_chars(value.data(), end, options.limit);
    if (read.ec != std::errc() || read.ptr != end || options.limit < 1) {
      return BadField("limit", "limit must be a number from 1");
    }
  }
  options.limit = std::min(options.limit, kObjectsListedMax);
  return options;
}

}  // namespace

void BatchRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, PathKind kind,
                       void (BatchRoutes::*member)(const Call&), bool takes_form = false) {
    table.Add({.method = method,
               .path = path,
               .handler =
                   [this, member](Call call) {
                     on_disk_(std::move(call),
                              [this, member](const Call& later) { (this->*member)(later); });
                   },
               .kind = kind,
               .takes_form = takes_form});
  };
  add("POST", "/v1/files", PathKind::kExact, &BatchRoutes::CreateFile, true);
  add("GET", "/v1/files", PathKind::kExact, &BatchRoutes::ListFiles);
  add("GET", "/v1/files/", PathKind::kPrefix, &BatchRoutes::OneFile);
  add("DELETE", "/v1/files/", PathKind::kPrefix, &BatchRoutes::DeleteFile);
  add("POST", "/v1/batches", PathKind::kExact, &BatchRoutes::CreateBatch);
  add("GET", "/v1/batches", PathKind::kExact, &BatchRoutes::ListBatches);
  add("GET", "/v1/batches/", PathKind::kPrefix, &BatchRoutes::OneBatch);
  add("POST", "/v1/batches/", PathKind::kPrefix, &BatchRoutes::CancelBatch);
}

void BatchRoutes::CreateFile(const Call& call) {
  const auto type = call.request.Header("content-type");
  if (!type || !IsMultipart(*type)) {
    return Refuse(call, {.status = 415,
                         .message = "Send the file as a form: 'Content-Type: multipart/form-data' "
                                    "with the fields purpose and file.",
                         .code = "unsupported_media_type"});
  }
  const auto form = ParseMultipart(*type, call.request.body);
  if (const auto* error = std::get_if<ApiError>(&form)) return Refuse(call, *error);
  const FormField* file = nullptr;
  std::string purpose;
  for (const FormField& field : std::get<std::vector<FormField>>(form)) {
    if (field.name == "file") file = &field;
    if (field.name == "purpose") purpose = std::string(field.content);
  }
  if (file == nullptr) return Refuse(call, BadField("file", "The form has no field 'file'."));
  if (purpose != "batch") {
    return Refuse(call, BadField("purpose", "purpose must be batch: files are input of batches."));
  }
  const std::string id = new_id_("file-");
  const std::string name = file->filename.substr(0, kNameBytesMax);
  const Json object = FileObject(id, file->content.size(), host_.now_s(), name, purpose);
  const Status put = host_.store.Put({.kind = ObjectKind::kFile,
                                      .owner = call.owner,
                                      .id = id,
                                      .created_s = host_.now_s(),
                                      .body = DumpJson(object),
                                      .content = std::string(file->content)});
  if (!put.ok()) return Refuse(call, ErrorOf(put));
  call.reply->Send(JsonResponse(object));
}

void BatchRoutes::List(const Call& call, ObjectKind kind) {
  const auto read = ReadListOptions(call.request);
  if (const auto* error = std::get_if<ApiError>(&read)) return Refuse(call, *error);
  const auto& options = std::get<ListOptions>(read);
  auto found = host_.store.List(kind, call.owner, options.after, options.limit + 1);
  if (!found.ok()) return Refuse(call, ErrorOf(found.status()));
  const bool more = found->size() > static_cast<size_t>(options.limit);
  if (more) found->pop_back();
  Json data = Json::array();
  for (const StoredObject& object : *found) {
    const auto batch = Running({call.owner, object.id});
    Result<Json> body = batch ? batch->object() : BodyOf(object);
    if (!body.ok()) continue;  // the log says so
    if (options.purpose.empty() || body->value("purpose", Json()) == Json(options.purpose)) {
      data.push_back(std::move(*body));
    }
  }
  call.reply->Send(JsonResponse({{"object", "list"},
                                 {"first_id", found->empty() ? Json() : Json(found->front().id)},
                                 {"last_id", found->empty() ? Json() : Json(found->back().id)},
                                 {"has_more", more},
                                 {"data", std::move(data)}}));
}

void BatchRoutes::ListFiles(const Call& call) { List(call, ObjectKind::kFile); }

void BatchRoutes::OneFile(const Call& call) {
  const bool content = call.rest.ends_with(kContent);
  const std::string id =
      content ? call.rest.substr(0, call.rest.size() - kContent.size()) : call.rest;
  auto file = host_.store.Get(ObjectKind::kFile, call.owner, id);
  if (!file.ok()) return Refuse(call, ErrorOf(file.status()));
  if (!content) {
    const Result<Json> body = BodyOf(*file);
    return body.ok() ? call.reply->Send(JsonResponse(*body)) : Refuse(call, ErrorOf(body.status()));
  }
  call.reply->Send({.headers = {{"content-type", "application/octet-stream"}},
                    .body = std::move(file->content)});
}

void BatchRoutes::DeleteFile(const Call& call) {
  if (IsInput(call.owner, call.rest)) {
    return Refuse(call, {.status = 409,
                         .message = "A batch that runs reads this file: cancel the batch first.",
                         .code = "file_in_use"});
  }
  const Status deleted = host_.store.Delete(ObjectKind::kFile, call.owner, call.rest);
  if (!deleted.ok()) return Refuse(call, ErrorOf(deleted));
  call.reply->Send(JsonResponse({{"id", call.rest}, {"object", "file"}, {"deleted", true}}));
}

void BatchRoutes::CreateBatch(const Call& call) {
  const Parsed<Json> body = ParseBody(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&body)) return Refuse(call, *error);
  FieldReader reader(std::get<Json>(body));
  std::string file, endpoint, window = "24h";
  reader.String("input_file_id", kNameBytesMax, file);
  reader.String("endpoint", kNameBytesMax, endpoint);
  reader.String("completion_window", kNameBytesMax, window);
  Json metadata;
  reader.Object("metadata", [&](const Json& value) { metadata = value; });
  reader.Unsupported("output_expires_after", "files stay until they are deleted or dropped");
  if (!reader.failed() && std::ranges::find(kEndpoints, endpoint) == kEndpoints.end()) {
    reader.Fail("endpoint", fmt::format("endpoint must be one of {}, got {}",
                                        fmt::join(kEndpoints, ", "), Describe(endpoint)));
  }
  const auto hours = HoursOf(window);
  if (!hours) {
    reader.Fail("completion_window", fmt::format("completion_window must be 1h to {}h, got {}",
                                                 kWindowHoursMax, Describe(window)));
  }
  if (reader.error()) return Refuse(call, *reader.error());
  const auto input = host_.store.Get(ObjectKind::kFile, call.owner, file);
  if (!input.ok()) {
    ApiError error = BadField("input_file_id", input.status().message());
    error.code = "file_not_found";
    return Refuse(call, error);
  }
  const int64_t now_s = host_.now_s();
  Json object = NewBatchObject(new_id_("batch_"), endpoint, file, window, now_s,
                               now_s + *hours * kHour_s, metadata);
  {
    MutexLock lock(mutex_);
    const auto own = static_cast<size_t>(std::ranges::count_if(
        running_, [&](const auto& running) { return running.first.first == call.owner; }));
    if (!call.owner.empty() && 2 * own >= kBatchesRunningMax) {  // the rest is for other keys
      return Refuse(call, FromStatus(ResourceExhausted(fmt::format(
                              "{} batches of this API key run already; try again when some have "
                              "ended.",
                              own))));
    }
    if (running_.size() >= kBatchesRunningMax) {
      return Refuse(
          call,
          FromStatus(ResourceExhausted(fmt::format(
              "{} batches run already; try again when some have ended.", kBatchesRunningMax))));
    }
  }
  Begin(call.owner, object);
  net::HttpResponse response = JsonResponse(object);
  const std::string ignored = IgnoredHeaderValue(reader);
  if (!ignored.empty()) response.headers.emplace_back(kIgnoredHeader, ignored);
  call.reply->Send(std::move(response));
}

void BatchRoutes::Begin(const std::string& owner, Json& object) {
  const std::string id = object["id"].get<std::string>();
  const std::string file = object["input_file_id"].get<std::string>();
  const auto fail = [&](const std::vector<BatchError>& errors) {
    Fail(object, host_.now_s(), errors);
    const Status put = host_.store.PutEndedBatch(EndedBatch(owner, object), {});
    if (!put.ok()) MR_LOG(error, "{} is not stored: {}", id, put.message());
  };
  const auto input = host_.store.Get(ObjectKind::kFile, owner, file);
  if (!input.ok()) return fail({{0, "file_not_found", input.status().message()}});
  auto parsed = ParseBatchFile(input->content, object["endpoint"].get<std::string>());
  if (const auto* errors = std::get_if<std::vector<BatchError>>(&parsed)) return fail(*errors);
  const auto done = host_.store.BatchLines(id);
  if (!done.ok()) return fail({{0, "server_error", done.status().message()}});
  const Name name(owner, id);
  auto batch =
      std::make_shared<Batch>(owner, object, std::move(std::get<std::vector<BatchRequest>>(parsed)),
                              *done, host_, [this, name] {
                                MutexLock lock(mutex_);
                                running_.erase(name);
                              });
  object = batch->object();
  if (const Status put = host_.store.Put(batch->stored()); !put.ok()) {
    return fail({{0, "store_full", put.message()}});
  }
  {
    MutexLock lock(mutex_);
    running_[name] = batch;
  }
  batch->Start();
}

void BatchRoutes::RunLeft() {
  const auto open = host_.store.ListOpen(ObjectKind::kBatch);
  if (!open.ok()) {
    MR_LOG(error, "batches are not continued: {}", open.status().message());
    return;
  }
  size_t continued = 0;
  for (const StoredObject& left : *open) {
    Result<Json> object = BatchBodyOf(left);
    if (object.ok()) {
      Begin(left.owner, *object);
      ++continued;
      continue;
    }
    const Status closed = host_.store.Close(ObjectKind::kBatch, left.owner, left.id);
    if (!closed.ok()) MR_LOG(warn, "{} stays open: {}", left.id, closed.message());
  }
  if (continued > 0) MR_LOG(info, "continuing {} batches", continued);
}

void BatchRoutes::ListBatches(const Call& call) { List(call, ObjectKind::kBatch); }

void BatchRoutes::OneBatch(const Call& call) {
  if (const auto batch = Running({call.owner, call.rest})) {
    return call.reply->Send(JsonResponse(batch->object()));
  }
  const Result<Json> batch = Stored(call.owner, call.rest);
  if (!batch.ok()) return Refuse(call, ErrorOf(batch.status()));
  call.reply->Send(JsonResponse(*batch));
}

void BatchRoutes::CancelBatch(const Call& call) {
  if (!call.rest.ends_with(kCancel)) {
    return Refuse(call, {.status = 404,
                         .message = "POST /v1/batches/{id}/cancel is the only route below a batch.",
                         .code = "not_found"});
  }
  const std::string id = call.rest.substr(0, call.rest.size() - kCancel.size());
  if (const auto batch = Running({call.owner, id})) {
    batch->Cancel();
    const StoredObject cancelling = batch->stored();
    if (const Status put = host_.store.Put(cancelling); !put.ok())
      return Refuse(call, ErrorOf(put));
    return call.reply->Send(JsonResponse(batch->object()));
  }
  const Result<Json> batch = Stored(call.owner, id);
  if (!batch.ok()) return Refuse(call, ErrorOf(batch.status()));
  Refuse(call, {.status = 409,
                .message = fmt::format("The batch cannot be cancelled: its status is {}.",
                                       (*batch)["status"].get<std::string>()),
                .code = "batch_ended"});
}

Result<Json> BatchRoutes::Stored(const std::string& owner, const std::string& id) {
  MR_ASSIGN_OR_RETURN(const StoredObject object, host_.store.Get(ObjectKind::kBatch, owner, id));
  return BatchBodyOf(object);
}

std::shared_ptr<Batch> BatchRoutes::Running(const Name& name) const {
  MutexLock lock(mutex_);
  const auto at = running_.find(name);
  return at == running_.end() ? nullptr : at->second;
}

bool BatchRoutes::IsInput(const std::string& owner, const std::string& file) const {
  MutexLock lock(mutex_);
  return std::ranges::any_of(running_, [&](const auto& entry) {
    return entry.first.first == owner && entry.second->object()["input_file_id"] == Json(file);
  });
}

}  // namespace millrace::serve
