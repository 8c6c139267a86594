#include "serve/debug_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "serve/answer/response.h"
#include "serve/observe/account_json.h"
#include "serve/observe/request_spans.h"

namespace millrace::serve {
namespace {

const char* StateName(sched::RequestState state) {
  switch (state) {
    case sched::RequestState::kWaiting: return "waiting";
    case sched::RequestState::kPulling: return "pulling";
    case sched::RequestState::kRunning: return "running";
    case sched::RequestState::kPreempted: return "preempted";
    case sched::RequestState::kSwapped: return "swapped";
    case sched::RequestState::kFinished: return "finished";
  }
  return "unknown";
}

Json SecondsOrNull(const std::optional<Time>& time, Time since) {
  return time ? Json((*time - since).seconds()) : Json();
}

Json TimesJson(const RequestTimes& times) {
  Json json = {{"first_scheduled_s", SecondsOrNull(times.first_scheduled, times.arrived)},
               {"last_scheduled_s", SecondsOrNull(times.last_scheduled, times.arrived)},
               {"first_token_s", SecondsOrNull(times.first_token, times.arrived)},
               {"last_token_s", SecondsOrNull(times.last_token, times.arrived)}};
  if (const auto phases = PhasesOf(times)) json["phases"] = PhasesJson(*phases);
  return json;
}

// Those that ended and took the longest, with the longest first.
std::vector<RegistryEntry> SlowestOf(std::vector<RegistryEntry> ended, int most) {
  std::erase_if(ended, [](const RegistryEntry& entry) { return !entry.account; });
  const auto took = [](const RegistryEntry& entry) { return entry.end() - entry.arrived; };
  std::ranges::stable_sort(ended, std::ranges::greater(), took);
  if (std::ssize(ended) > most) ended.resize(static_cast<size_t>(most));
  return ended;
}

// "slowest=N".
Result<std::optional<int>> SlowestAsked(std::string_view query) {
  MR_ASSIGN_OR_RETURN(const net::HttpHeaders pairs, net::ParseQuery(query));
  std::optional<int> slowest;
  for (const auto& [name, value] : pairs) {
    if (name != "slowest") {
      return InvalidArgument(
          fmt::format("'{}' is not a parameter of this route; slowest=N is.", Printable(name, 64)));
    }
    const auto number = ParseInt(value);
    if (!number.ok() || *number < 1 || *number > static_cast<int64_t>(kEndedRequestsKept)) {
      return InvalidArgument(fmt::format("slowest must be an integer in [1, {}], got '{}'.",
                                         kEndedRequestsKept, Printable(value, 64)));
    }
    slowest = static_cast<int>(*number);
  }
  return slowest;
}

}  // namespace

void DebugRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* path, void (DebugRoutes::*member)(Call), PathKind kind) {
    table.Add({.method = "GET",
               .path = path,
               .access = Access::kAdmin,
               .handler = [this, member](Call call) { (this->*member)(std::move(call)); },
               .kind = kind});
  };
  add("/debug/requests", &DebugRoutes::List, PathKind::kExact);
  add("/debug/requests/", &DebugRoutes::Show, PathKind::kPrefix);
}

Json DebugRoutes::Describe(const RegistryEntry& entry, const ModelContext* loaded) const {
  Json body = {{"id", entry.id.value()},
               {"response_id", entry.response_id},
               {"request_id", entry.external_id},
               {"route", entry.route},
               {"prompt_index", entry.prompt_index},
               {"prompt_tokens", entry.prompt_tokens},
               {"n", entry.n},
               {"stream", entry.stream}};
  if (!entry.finish_reason.empty()) {
    body["state"] = "finished";
    body["finish_reason"] = entry.finish_reason;
    body["output_tokens"] = entry.generation_tokens;
    if (entry.times) body["times"] = TimesJson(*entry.times);
    if (entry.account) {
      body["account"] = AccountJson(*entry.account, entry.arrived, entry.end());
    }
    return body;
  }
  const Time now = clock_.Now();
  body["age_s"] = (now - entry.arrived).seconds();
  const auto info = loaded != nullptr ? loaded->model.engine->Inspect(entry.id) : std::nullopt;
  if (!info) {
    body["state"] = "ending";  // the controller has finished it; the answer is being written
    return body;
  }
  body["state"] = StateName(info->state);
  body["waits_for"] = info->waits_for;
  body["computed_tokens"] = info->computed_tokens;
  body["output_tokens"] = info->output_tokens;
  body["cached_prompt_tokens"] = info->cached_prompt_tokens;
  body["blocks"] = info->blocks;
  body["host_blocks"] = info->host_blocks;
  body["preemptions"] = info->preemptions;
  if (const auto account = loaded->model.engine->Account(entry.id)) {
    body["account"] = AccountJson(*account, entry.arrived, account->until());
  }
  return body;
}

void DebugRoutes::List(Call call) {
  const auto slowest = SlowestAsked(call.request.query);
  if (!slowest.ok()) return call.reply->Send(ErrorResponse(FromStatus(slowest.status())));
  const std::shared_ptr<ModelContext> loaded = routes_.loaded_now();
  Json list = Json::array();
  if (*slowest) {
    for (const RegistryEntry& entry : SlowestOf(registry_.Ended(), **slowest)) {
      list.push_back(Describe(entry, loaded.get()));
    }
    return call.reply->Send(JsonResponse({{"requests", std::move(list)}}));
  }
  for (const RegistryEntry& entry : registry_.Live()) {
    list.push_back(Describe(entry, loaded.get()));
  }
  call.reply->Send(JsonResponse({{"requests", std::move(list)}}));
}

void DebugRoutes::Show(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded_now();
  const std::vector<RegistryEntry> found = registry_.Find(call.rest);
  if (found.empty()) {
    return call.reply->Send(
        ErrorResponse({.status = 404,
                       .message = fmt::format(
                           "No request with that id is running or among the last {} that ended.",
                           kEndedRequestsKept),
                       .code = "request_not_found"}));
  }
  Json body = Describe(found.front(), loaded.get());
  if (found.size() > 1) {
    Json others = Json::array();
    for (size_t i = 1; i < found.size(); ++i) {
      others.push_back(Describe(found[i], loaded.get()));
    }
    body["others"] = std::move(others);
  }
  call.reply->Send(JsonResponse(body));
}

}  // namespace millrace::serve
