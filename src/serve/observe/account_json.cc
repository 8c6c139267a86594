#include "serve/observe/account_json.h"

#include <algorithm>
#include <string>

namespace millrace::serve {
namespace {

Json IdsJson(const AccountIds& ids) {
  Json list = Json::array();
  for (RequestId id : ids) {
    if (id != RequestId()) list.push_back(id.value());
  }
  return list;
}

// Fields that say nothing are left out.
void SetIfAny(Json& json, const char* name, int64_t count) {
  if (count > 0) json[name] = count;
}

Json EntryJson(const TimeEntry& entry, Time arrived) {
  Json json = {{"use", TimeUseName(entry.use)},
               {"start_s", (entry.begin - arrived).seconds()},
               {"seconds", entry.took.seconds()}};
  if (entry.cause != TimeCause::kNone) json["cause"] = TimeCauseName(entry.cause);
  SetIfAny(json, "steps", entry.steps);
  SetIfAny(json, "tokens", entry.tokens);
  const bool queues = entry.use == TimeUse::kQueue || entry.use == TimeUse::kRequeue;
  SetIfAny(json, queues ? "requests_ahead" : "other_requests", entry.others);
  SetIfAny(json, "requests_running", entry.running);
  SetIfAny(json, queues ? "prompt_tokens_ahead" : "other_tokens", entry.others_tokens);
  if (Json ids = IdsJson(entry.ids); !ids.empty()) json["requests"] = std::move(ids);
  if (entry.layers.size() > 0) json["layers"] = {entry.layers.begin, entry.layers.end};
  if (entry.bytes > 0) {
    json["bytes"] = entry.bytes;
    json["pull_s"] = entry.pull_s;
    if (entry.pull_s > 0) json["gb_per_s"] = static_cast<double>(entry.bytes) / entry.pull_s / 1e9;
  }
  if (!entry.from.empty()) json["from"] = entry.from;
  return json;
}

Json GapsJson(const TimeAccount& account) {
  Json largest = Json::array();
  for (const TokenGap& gap : account.gaps()) {
    Json& json = largest.emplace_back(Json{{"seconds", gap.took.seconds()},
                                           {"after_tokens", gap.after_tokens},
                                           {"use", TimeUseName(gap.use)}});
    if (gap.cause != TimeCause::kNone) json["cause"] = TimeCauseName(gap.cause);
    SetIfAny(json, "other_tokens", gap.others_tokens);
    if (Json ids = IdsJson(gap.ids); !ids.empty()) json["requests"] = std::move(ids);
  }
  const auto count = account.gaps_counted();
  return {
      {"count", count},
      {"mean_s", account.gaps_sum().seconds() / static_cast<double>(std::max<int64_t>(count, 1))},
      {"largest", std::move(largest)}};
}

}  // namespace

std::vector<TimeEntry> WholeAccount(const TimeAccount& account, Time arrived, Time end) {
  std::vector<TimeEntry> whole;
  const auto add = [&whole](TimeUse use, Time from, Time to) {
    if (to <= from) return;
    TimeEntry& entry = whole.emplace_back();
    entry.use = use;
    entry.begin = from;
    entry.took = to - from;
  };
  add(TimeUse::kPrepare, arrived, account.begin());
  whole.insert(whole.end(), account.entries().begin(), account.entries().end());
  add(TimeUse::kDeliver, account.until(), end);
  return whole;
}

Json AccountJson(const TimeAccount& account, Time arrived, Time end) {
  Json entries = Json::array();
  for (const TimeEntry& entry : WholeAccount(account, arrived, end)) {
    entries.push_back(EntryJson(entry, arrived));
  }
  return {
      {"wall_s", (std::max(end, account.until()) - std::min(arrived, account.begin())).seconds()},
      {"entries", std::move(entries)},
      {"token_gaps", GapsJson(account)}};
}

}  // namespace millrace::serve
