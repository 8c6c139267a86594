#include "serve/response_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <random>

#include "base/log.h"
#include "serve/apis/responses_writer.h"
#include "serve/service_impl.h"
#include "serve/stored/stored_json.h"
#include "serve/stored/stored_reply.h"

namespace millrace::serve {
namespace {

ApiError NoSuchResponse(const Status& status) { return StoredError(status, "response_not_found"); }

// A request without a seed gets one: what has to be computed again gives the same response.
int64_t NewSeed() {
  std::random_device device;
  return (int64_t{device()} << 16) ^ device();
}

// Which events a client wants: after how many, or all of them; nullopt: the response itself.
Parsed<std::optional<uint64_t>> EventsWanted(const net::HttpRequest& request) {
  const auto query = net::ParseQuery(request.query);
  if (!query.ok()) return BadField("query", query.status().message());
  bool stream = false;
  uint64_t after = 0;
  for (const auto& [name, value] : *query) {
    if (name == "stream") {
      if (value != "true" && value != "false") {
        return BadField("stream", "stream must be true or false");
      }
      stream = value == "true";
    } else if (name == "starting_after") {
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, after);
      if (read.ec != std::errc() || read.ptr != end || after >= (uint64_t{1} << 32)) {
        return BadField("starting_after",
                        "starting_after must be the sequence_number of an event of this response");
      }
      ++after;  // sequence numbers begin with 0
    }
  }
  if (const auto last = request.Header("last-event-id"); stream && last) {
    const auto position = ParseStreamPosition(*last);
    if (!position) return BadField("Last-Event-ID", "Last-Event-ID must be the id of an event");
    after = position->after;
  }
  return stream ? std::optional(after) : std::nullopt;
}

Json IdOfItem(const Json& item) { return item.value("id", Json()); }

// Some of a response's input.
struct ItemPage {
  Json items = Json::array();
  bool more = false;  // there are others behind them
};

// As the query says: `limit` (20), `order` (desc), and `after`, the id of an item. The defaults are
// those of OpenAI's API.
Parsed<ItemPage> PageOf(const net::HttpRequest& request, Json items) {
  constexpr size_t kLimitMax = 100;
  const auto query = net::ParseQuery(request.query);
  if (!query.ok()) return BadField("query", query.status().message());
  size_t limit = 20;
  bool newest_first = true;
  std::string after;
  for (const auto& [name, value] : *query) {
    if (name == "limit") {
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, limit);
      if (read.ec != std::errc() || read.ptr != end || limit == 0 || limit > kLimitMax) {
        return BadField("limit", fmt::format("limit must be an integer from 1 to {}, got \"{}\"",
                                             kLimitMax, Printable(value)));
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") {
        return BadField("order",
                        fmt::format("order must be asc or desc, got \"{}\"", Printable(value)));
      }
      newest_first = value == "desc";
    } else if (name == "after") {
      after = value;
    }
  }
  if (newest_first) std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (!after.empty()) {
    begin = std::find_if(items.begin(), items.end(),
                         [&](const Json& item) { return IdOfItem(item) == after; });
    if (begin == items.end()) {
      return BadField("after", fmt::format("after must be the id of an item of this input, got "
                                           "\"{}\"",
                                           Printable(after)));
    }
    ++begin;
  }
  ItemPage page;
  for (; begin != items.end() && page.items.size() < limit; ++begin) {
    page.items.push_back(*begin);
  }
  page.more = begin != items.end();
  return page;
}

}  // namespace

void ResponseRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, PathKind kind,
                       void (ResponseRoutes::*member)(Call)) {
    table.Add({method, path, Access::kKeyed,
               [this, member](Call call) { (this->*member)(std::move(call)); }, kind});
  };
  add("POST", "/v1/responses", PathKind::kExact, &ResponseRoutes::Create);
  add("GET", "/v1/responses/", PathKind::kPrefix, &ResponseRoutes::Fetch);
  add("DELETE", "/v1/responses/", PathKind::kPrefix, &ResponseRoutes::Delete);
  add("POST", "/v1/responses/", PathKind::kPrefix, &ResponseRoutes::Cancel);
}

void ResponseRoutes::Create(Call call) {
  Parsed<Json> parsed = ParseBody(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return call.Refuse(*error);
  const auto body = std::make_shared<const Json>(std::move(std::get<Json>(parsed)));
  const auto options = ReadResponsesOptions(*body);
  if (const auto* error = std::get_if<ApiError>(&options)) return call.Refuse(*error);
  const auto& given = std::get<ResponsesOptions>(options);
  if (given.previous.empty() && !given.background) {
    return CreateFrom(std::move(call), *body, given, nullptr);
  }
  host_.on_disk(std::move(call),
                [this, body, given](Call again) { CreateAfter(std::move(again), *body, given); });
}

void ResponseRoutes::CreateAfter(Call call, const Json& body, const ResponsesOptions& options) {
  if (options.previous.empty()) return CreateFrom(std::move(call), body, options, nullptr);
  const auto earlier = StoredConversation(host_.store, call.owner, options.previous);
  if (const auto* error = std::get_if<ApiError>(&earlier)) {
    return call.reply->Send(ErrorResponse(*error));
  }
  CreateFrom(std::move(call), body, options, &std::get<OrderedJson>(earlier));
}

void ResponseRoutes::CreateFrom(Call call, const Json& body, const ResponsesOptions& options,
                                const OrderedJson* earlier) {
  const std::string id = routes_.new_id(std::string(kResponseIdBegin));
  ResponsesContext context{.id = id, .earlier = earlier};
  if (options.background) context.seed = NewSeed();
  auto read = ReadResponsesRequest(body, call.request.body, context);
  if (const auto* error = std::get_if<ApiError>(&read)) return call.Refuse(*error);
  auto& [made, input, echoed] = std::get<ResponsesRequest>(read);
  ResponseRecord record{.owner = call.owner,
                        .id = id,
                        .previous = options.previous,
                        .created_s = UnixSeconds(),
                        .open = options.background,
                        .streams = options.stream,
                        .input = std::move(input),
                        .ignored = made.ignored,
                        .names = made.names};
  if (options.background) {
    record.response = std::move(echoed);
    return CreateInBackground(std::move(call), std::move(record), made.chat);
  }
  ResponseOrigin origin{.id = id, .created_s = record.created_s, .echoed = std::move(echoed)};
  if (options.store) {
    auto kept = std::make_shared<ResponseRecord>(std::move(record));
    auto reply = std::make_shared<StoredReply>(
        call.reply,
        [this, kept](std::function<void(bool)> stored) { StoreEnded(kept, std::move(stored)); });
    origin.ended = [kept, reply](Json& response) {
      kept->response = response;
      reply->Hold();
    };
    call.reply = std::move(reply);
  }
  routes_.chat(std::move(call), made.chat,
               std::make_shared<ResponsesWriter>(std::move(origin), std::move(made.names),
                                                 std::move(made.ignored)));
}

void ResponseRoutes::StoreEnded(const std::shared_ptr<ResponseRecord>& ended,
                                std::function<void(bool)> stored) {
  StoredObject object = ObjectOf(*ended);
  const size_t bytes = BytesOf(object);
  host_.store_soon(ended->owner, bytes,
                   [this, object = std::move(object), stored = std::move(stored)](bool room) {
                     const Status put = room ? host_.store.Put(object)
                                             : ResourceExhausted("too many wait for the store");
                     if (!put.ok()) MR_LOG(warn, "{} is not stored: {}", object.id, put.message());
                     stored(put.ok());
                   });
}

std::optional<ApiError> ResponseRoutes::Check(const OrderedJson& chat,
                                              const net::HttpReply& client) const {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded_now();
  if (!loaded) return Unready("The model is still loading.");
  if (host_.draining()) return Draining();
  Parsed<ChatRequest> parsed = ParseChatObject(chat, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model)) return ModelNotFound(request.options.model);
  const auto tokens = EncodeConversation(loaded->model, request.conversation, {.client = &client});
  if (const auto* error = std::get_if<ApiError>(&tokens)) return *error;
  const auto count = static_cast<int>(std::get<std::vector<TokenId>>(tokens).size());
  if (count < loaded->model.max_model_len) return std::nullopt;
  return ContextTooLong(loaded->model.max_model_len, count, std::nullopt);
}

void ResponseRoutes::CreateInBackground(Call call, ResponseRecord record, const OrderedJson& chat) {
  const auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  if (const auto error = Check(chat, *call.reply)) return refuse(record.names.Of(*error));
  record.chat = chat.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const std::string model = *routes_.served_name(record.response.value("model", ""));
  record.response.update({{"id", record.id},
                          {"object", "response"},
                          {"created_at", record.created_s},
                          {"model", model},
                          {"status", "queued"},
                          {"error", nullptr},
                          {"incomplete_details", nullptr},
                          {"output", Json::array()},
                          {"usage", nullptr}});
  if (const Status put = PutRecord(host_.store, record); !put.ok()) {
    return refuse(FromStatus(put));
  }
  const Json queued = record.response;
  const bool streams = record.streams;
  auto run = std::make_shared<BackgroundResponse>(std::move(record), host_.clock,
                                                  streams ? call.reply : nullptr);
  if (!Post(run)) {
    const ApiError full = FromStatus(ResourceExhausted(
        "Too many responses wait to be computed in the background; try again later."));
    (void)host_.store.Delete(ObjectKind::kResponse, call.owner, queued["id"]).ok();
    if (!streams) return refuse(full);
    return run->Fail(full.message);  // its stream has begun
  }
  if (!streams) call.reply->Send(JsonResponse(queued));
}

bool ResponseRoutes::Post(const std::shared_ptr<BackgroundResponse>& run) {
  const ResponseRecord record = run->record();
  const Name name(record.owner, record.id);
  {
    MutexLock lock(mutex_);
    running_[name] = run;
  }
  const bool posted = host_.queue.TryPost(
      record.owner, record.chat.size(),
      [this, run](std::function<void(BackgroundQueue::End)> end) { Run(run, std::move(end)); });
  if (!posted) {
    MutexLock lock(mutex_);
    running_.erase(name);
  }
  return posted;
}

void ResponseRoutes::Run(const std::shared_ptr<BackgroundResponse>& run,
                         std::function<void(BackgroundQueue::End)> end) {
  const Name name = run->name();
  const auto ended = [this, run, name, end](BackgroundResponse::TryEnd how) {
    if (how == BackgroundResponse::TryEnd::kTryAgain) return end(BackgroundQueue::End::kTryAgain);
    const auto put = [this, run, how] {
      const bool stores = how == BackgroundResponse::TryEnd::kEnded;
      return stores ? PutRecord(host_.store, run->record()) : OkStatus();
    };
    host_.store_patiently(put, [this, name, end](const Status& stored) {
      if (!stored.ok()) {
        MR_LOG(error, "the end of {} is not stored: {}", name.second, stored.message());
      }
      {
        MutexLock lock(mutex_);
        running_.erase(name);
      }
      end(BackgroundQueue::End::kDone);
    });
  };
  if (!run->open()) return ended(BackgroundResponse::TryEnd::kEnded);  // cancelled
  auto reply = run->Try(ended, host_.draining);  // first: it ends the response if the rest throws
  ResponseRecord record = run->record();
  ResponseOrigin origin{.id = record.id,
                        .created_s = record.created_s,
                        .echoed = record.response,
                        .ended = [run, draining = host_.draining](Json& response) {
                          run->TakeEnded(response, draining());
                        }};
  Call call;
  call.request.method = "POST";
  call.request.path = "/v1/responses";
  call.request_id = record.id;
  call.owner = record.owner;
  call.in_background = true;
  call.reply = std::move(reply);
  const auto writer = std::make_shared<ResponsesWriter>(std::move(origin), std::move(record.names),
                                                        std::move(record.ignored));
  const Result<OrderedJson> chat = ParseOrderedJson(record.chat, kStoredDepthMax);
  if (!chat.ok()) return call.reply->Send(writer->Refusal(FromStatus(chat.status())));
  routes_.chat(std::move(call), *chat, writer);
}

void ResponseRoutes::RunLeft() {
  auto open = host_.store.ListOpen(ObjectKind::kResponse);
  if (!open.ok()) {
    MR_LOG(error, "responses in the background are not continued: {}", open.status().message());
    return;
  }
  size_t continued = 0;
  for (StoredObject& object : *open) {
    const Name name(object.owner, object.id);
    Result<ResponseRecord> record = RecordOf(std::move(object));
    if (!record.ok()) {
      const Status closed = host_.store.Close(ObjectKind::kResponse, name.first, name.second);
      if (!closed.ok()) MR_LOG(warn, "{} stays open: {}", name.second, closed.message());
      continue;
    }
    record->events.clear();  // they come again
    if (Post(std::make_shared<BackgroundResponse>(std::move(*record), host_.clock, nullptr))) {
      ++continued;
    } else {
      MR_LOG(error, "{} is not continued: too many wait", name.second);
    }
  }
  if (continued > 0) MR_LOG(info, "continuing {} responses in the background", continued);
}

std::shared_ptr<BackgroundResponse> ResponseRoutes::Running(const Name& name) const {
  MutexLock lock(mutex_);
  const auto at = running_.find(name);
  return at == running_.end() ? nullptr : at->second;
}

void ResponseRoutes::Fetch(Call call) {
  host_.on_disk(std::move(call), [this](Call later) {
    constexpr std::string_view kItems = "/input_items";
    const std::string& rest = later.rest;
    if (rest.ends_with(kItems)) {
      const std::string id = rest.substr(0, rest.size() - kItems.size());
      return InputItems(std::move(later), id);
    }
    const auto wanted = EventsWanted(later.request);
    if (const auto* error = std::get_if<ApiError>(&wanted)) {
      return later.reply->Send(ErrorResponse(*error));
    }
    const auto& after = std::get<std::optional<uint64_t>>(wanted);
    if (after && later.request.method != "HEAD") {
      const std::string id = rest;
      return Follow(std::move(later), id, *after);
    }
    if (const auto run = Running({later.owner, rest})) {
      return later.reply->Send(JsonResponse(run->record().response));
    }
    const auto record = GetRecord(host_.store, later.owner, rest);
    later.reply->Send(record.ok() ? JsonResponse(record->response)
                                  : ErrorResponse(NoSuchResponse(record.status())));
  });
}

void ResponseRoutes::Follow(Call call, const std::string& id, uint64_t after) {
  const auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  const ApiError no_events =
      BadField("stream",
               "The events of this response are not kept: it was not made with background and "
               "stream, or it had too many.");
  if (const auto run = Running({call.owner, id})) {
    if (run->Follow(call.reply, after)) return;
    if (run->record().open) return refuse(no_events);
  }
  const auto record = GetRecord(host_.store, call.owner, id);
  if (!record.ok()) return refuse(NoSuchResponse(record.status()));
  if (record->events.empty()) return refuse(no_events);
  call.reply->Start(EventStreamHead());
  call.reply->Write(std::string(EventsAfter(record->events, after)));
  call.reply->End();
}

void ResponseRoutes::InputItems(Call call, const std::string& id) {
  const auto record = GetRecord(host_.store, call.owner, id);
  if (!record.ok()) return call.reply->Send(ErrorResponse(NoSuchResponse(record.status())));
  const Json items(record->input);
  Parsed<ItemPage> page = PageOf(call.request, items);
  if (const auto* error = std::get_if<ApiError>(&page)) {
    return call.reply->Send(ErrorResponse(*error));
  }
  auto& [data, more] = std::get<ItemPage>(page);
  const Json first = data.empty() ? Json() : IdOfItem(data.front());
  const Json last = data.empty() ? Json() : IdOfItem(data.back());
  call.reply->Send(JsonResponse({{"object", "list"},
                                 {"data", std::move(data)},
                                 {"first_id", first},
                                 {"last_id", last},
                                 {"has_more", more}}));
}

void ResponseRoutes::Delete(Call call) {
  host_.on_disk(std::move(call), [this](Call later) {
    if (const auto run = Running({later.owner, later.rest})) {
      return later.reply->Send(ErrorResponse(
          {.status = 409,
           .message = "The response is still computed in the background: cancel it first.",
           .code = "response_in_progress"}));
    }
    const Status deleted = host_.store.Delete(ObjectKind::kResponse, later.owner, later.rest);
    if (!deleted.ok()) return later.reply->Send(ErrorResponse(NoSuchResponse(deleted)));
    later.reply->Send(
        JsonResponse({{"id", later.rest}, {"object", "response.deleted"}, {"deleted", true}}));
  });
}

void ResponseRoutes::Cancel(Call call) {
  host_.on_disk(std::move(call), [this](Call later) {
    constexpr std::string_view kCancel = "/cancel";
    const auto refuse = [&later](const ApiError& error) {
      later.reply->Send(ErrorResponse(error));
    };
    if (!later.rest.ends_with(kCancel)) {
      return refuse(
          {.status = 404,
           .message = "POST /v1/responses/{id}/cancel is the only route below a response.",
           .code = "not_found"});
    }
    const std::string id = later.rest.substr(0, later.rest.size() - kCancel.size());
    if (const auto run = Running({later.owner, id})) {
      run->Cancel();
      const ResponseRecord record = run->record();
      if (const Status put = PutRecord(host_.store, record); !put.ok()) {
        return refuse(FromStatus(put));
      }
      return later.reply->Send(JsonResponse(record.response));
    }
    const auto record = GetRecord(host_.store, later.owner, id);
    if (!record.ok()) return refuse(NoSuchResponse(record.status()));
    if (record->response["background"] != Json(true)) {
      return refuse(BadField("id",
                             "Only a response with background can be cancelled; close the "
                             "connection of others."));
    }
    later.reply->Send(JsonResponse(record->response));  // it has ended, perhaps just now
  });
}

}  // namespace millrace::serve
