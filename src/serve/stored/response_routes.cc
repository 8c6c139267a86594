#include "serve/stored/response_routes.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <random>

#include "base/log.h"
#include "serve/responses_reply.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

ApiError NoSuchResponse(const Status& status) {
  ApiError error = FromStatus(status);
  if (status.code() != StatusCode::kNotFound) return error;
  error.status = 404;
  error.message = status.message();
  error.code = "response_not_found";
  return error;
}

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
  const auto options = ReadResponsesOptions(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&options)) {
    return call.reply->Send(ErrorResponse(*error));
  }
  const auto& given = std::get<ResponsesOptions>(options);
  if (given.previous.empty() && !given.background) {
    return CreateFrom(std::move(call), given, nullptr);
  }
  host_.on_disk(std::move(call),
                [this, given](Call again) { CreateAfter(std::move(again), given); });
}

void ResponseRoutes::CreateAfter(Call call, const ResponsesOptions& options) {
  if (options.previous.empty()) return CreateFrom(std::move(call), options, nullptr);
  const auto earlier = StoredConversation(host_.store, call.owner, options.previous);
  if (const auto* error = std::get_if<ApiError>(&earlier)) {
    return call.reply->Send(ErrorResponse(*error));
  }
  CreateFrom(std::move(call), options, &std::get<OrderedJson>(earlier));
}

void ResponseRoutes::CreateFrom(Call call, const ResponsesOptions& options,
                                const OrderedJson* earlier) {
  const std::string id = routes_.new_id(std::string(kResponseIdBegin));
  ResponsesContext context{.id = id, .earlier = earlier};
  if (options.background) context.seed = NewSeed();
  auto translated = ChatOfResponses(call.request.body, context);
  if (const auto* error = std::get_if<ApiError>(&translated)) {
    return call.reply->Send(ErrorResponse(*error));
  }
  auto& request = std::get<TranslatedRequest>(translated);
  ResponseRecord record{.owner = call.owner,
                        .id = id,
                        .previous = options.previous,
                        .created_s = UnixSeconds(),
                        .open = options.background,
                        .streams = options.stream,
                        .input = serve::InputItems(call.request.body, id),
                        .ignored = request.ignored};
  const Json echoed = EchoedInResponses(call.request.body);
  if (options.background) {
    record.response = echoed;
    record.chat = std::move(request.chat);
    return CreateInBackground(std::move(call), std::move(record));
  }
  ResponseOrigin origin{.id = id, .created_s = record.created_s, .echoed = echoed};
  if (options.store) {
    auto kept = std::make_shared<ResponseRecord>(std::move(record));
    origin.ended = [this, kept](Json& response) {
      kept->response = response;
      const Status put = PutRecord(host_.store, *kept);
      if (put.ok()) return;
      MR_LOG(warn, "{} is not stored: {}", kept->id, put.message());
      response["store"] = false;
    };
  }
  call.reply = std::make_shared<ResponsesReply>(call.reply, std::move(origin), request.ignored);
  call.request.body = std::move(request.chat);
  routes_.chat(std::move(call));
}

std::optional<ApiError> ResponseRoutes::Check(const std::string& chat) const {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded_now();
  if (!loaded) return Unready("The model is still loading.");
  if (host_.draining()) return Draining();
  Parsed<ChatRequest> parsed = ParseChatRequest(chat, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const ChatRequest& request = std::get<ChatRequest>(parsed);
  if (!routes_.served_name(request.options.model)) return ModelNotFound(request.options.model);
  const auto tokens = EncodeConversation(loaded->model, request.conversation);
  if (const auto* error = std::get_if<ApiError>(&tokens)) return *error;
  const auto count = static_cast<int>(std::get<std::vector<TokenId>>(tokens).size());
  if (count < loaded->model.max_model_len) return std::nullopt;
  return ContextTooLong(loaded->model.max_model_len, count, std::nullopt);
}

void ResponseRoutes::CreateInBackground(Call call, ResponseRecord record) {
  const auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  if (const auto error = Check(record.chat)) return refuse(*error);
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
    return run->Fail(ErrorBody(full)["error"]);  // its stream has begun
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
      [this, run](std::function<void(BackgroundQueue::End)> end) { Run(run, std::move(end)); });
  if (!posted) {
    MutexLock lock(mutex_);
    running_.erase(name);
  }
  return posted;
}

void ResponseRoutes::Run(const std::shared_ptr<BackgroundResponse>& run,
                         std::function<void(BackgroundQueue::End)> end) {
  ResponseRecord record = run->record();
  const Name name(record.owner, record.id);
  const auto ended = [this, run, name, end](BackgroundResponse::TryEnd how) {
    if (how == BackgroundResponse::TryEnd::kTryAgain) return end(BackgroundQueue::End::kTryAgain);
    if (how == BackgroundResponse::TryEnd::kEnded) {
      const Status put = PutRecord(host_.store, run->record());
      if (!put.ok()) MR_LOG(error, "the end of {} is not stored: {}", name.second, put.message());
    }
    {
      MutexLock lock(mutex_);
      running_.erase(name);
    }
    end(BackgroundQueue::End::kDone);
  };
  if (!record.open) return ended(BackgroundResponse::TryEnd::kEnded);  // cancelled
  ResponseOrigin origin{.id = record.id,
                        .created_s = record.created_s,
                        .echoed = record.response,
                        .ended = [run, draining = host_.draining](Json& response) {
                          run->TakeEnded(response, draining());
                        }};
  Call call;
  call.request.method = "POST";
  call.request.path = "/v1/responses";
  call.request.body = record.chat;
  call.request_id = record.id;
  call.owner = record.owner;
  call.in_background = true;
  call.reply = std::make_shared<ResponsesReply>(run->Try(ended, host_.draining), std::move(origin),
                                                record.ignored);
  routes_.chat(std::move(call));
}

void ResponseRoutes::RunLeft() {
  auto open = host_.store.ListOpen(ObjectKind::kResponse);
  if (!open.ok()) {
    MR_LOG(error, "responses in the background are not continued: {}", open.status().message());
    return;
  }
  for (StoredObject& object : *open) {
    ResponseRecord record = RecordOf(std::move(object));
    record.events.clear();  // they come again
    const std::string id = record.id;
    if (!Post(std::make_shared<BackgroundResponse>(std::move(record), host_.clock, nullptr))) {
      MR_LOG(error, "{} is not continued: too many wait", id);
    }
  }
  if (!open->empty()) MR_LOG(info, "continuing {} responses in the background", open->size());
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
  Json items = Json::parse(record->input.dump(-1, ' ', false, Json::error_handler_t::replace));
  const auto id_at = [&](size_t i) {
    return items.empty() ? Json() : items[i].value("id", Json());
  };
  const Json first = id_at(0), last = id_at(items.empty() ? 0 : items.size() - 1);
  call.reply->Send(JsonResponse({{"object", "list"},
                                 {"data", std::move(items)},
                                 {"first_id", first},
                                 {"last_id", last},
                                 {"has_more", false}}));
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
