#include "serve/request/call_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"

namespace millrace::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;
using text::CallIds;

constexpr size_t kNine = 9;
constexpr int kCallNumberMax = 1'000'000;
constexpr std::string_view kAlphanumeric =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// Nine letters and digits that follow from the text.
std::string NineCharsOf(std::string_view text) {
  std::string id;
  for (const auto byte : Sha256Of(text)) {
    id += kAlphanumeric[static_cast<unsigned char>(byte) % kAlphanumeric.size()];
    if (id.size() == kNine) break;
  }
  return id;
}

bool IsNineChars(std::string_view id) {
  return id.size() == kNine && id.find_first_not_of(kAlphanumeric) == std::string_view::npos;
}

std::string NumberedId(std::string_view name, int number) {
  return fmt::format("functions.{}:{}", name, number);
}

// N of functions.NAME:N.
std::optional<int> NumberOf(std::string_view id, std::string_view name) {
  const std::string before = fmt::format("functions.{}:", name);
  if (!id.starts_with(before)) return std::nullopt;
  const std::string_view digits = id.substr(before.size());
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && number >= 0 && number < kCallNumberMax ? std::optional(number) : std::nullopt;
}

std::string TextOr(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

class CallIdWriter {
 public:
  explicit CallIdWriter(CallIds ids) : ids_(ids) {}

  void Write(OrderedJson& message) {
    if (!message.is_object()) return;
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && calls->is_array()) {
      for (OrderedJson& call : *calls) WriteCall(call);
    } else if (message.value("role", OrderedJson()) == OrderedJson("tool")) {
      WriteResult(message);
    }
  }

  int next_number() const { return next_number_; }

 private:
  // Calls in the order in which results take them.
  struct Queue {
    std::vector<size_t> calls;
    size_t first = 0;  // those before it have results
  };

  void WriteCall(OrderedJson& call) {
    if (!call.is_object()) return;
    const std::string given = TextOr(call, "id");
    const auto function = call.find("function");
    const std::string name =
        function != call.end() && function->is_object() ? TextOr(*function, "name") : "";
    const std::string made = Made(given, name);
    if (given != made || !call["id"].is_string()) call["id"] = made;
    const size_t at = made_.size();
    made_.push_back(made);
    answered_.push_back(false);
    in_order_.calls.push_back(at);
    by_name_[name].calls.push_back(at);
    if (!given.empty()) by_id_[given].calls.push_back(at);
  }

  std::string Made(const std::string& given, const std::string& name) {
    const auto position = static_cast<int>(made_.size());
    if (ids_ == CallIds::kNumbered) {
      const auto number = NumberOf(given, name);
      const bool stays = number && used_.insert(given).second;
      const int made = stays ? *number : std::max(position, next_number_);
      next_number_ = std::max({next_number_, made + 1, position + 1});
      if (stays) return given;
      used_.insert(NumberedId(name, made));
      return NumberedId(name, made);
    }
    if (ids_ != CallIds::kNineChars || IsNineChars(given)) return given;
    return NineCharsOf(given.empty() ? fmt::format("call {}", position) : given);
  }

  void WriteResult(OrderedJson& message) {
    const std::string given = TextOr(message, "tool_call_id");
    std::optional<size_t> call;
    if (!given.empty()) {
      const auto found = by_id_.find(given);
      if (found != by_id_.end()) {
        call = Take(found->second);
        if (!call) call = found->second.calls.back();
      }
    } else {
      for (const char* field : {"name", "tool_name"}) {
        const auto found = by_name_.find(TextOr(message, field));
        if (!call && found != by_name_.end()) call = Take(found->second);
      }
      if (!call) call = Take(in_order_);
    }
    if (call) {
      message["tool_call_id"] = made_[*call];
    } else if (ids_ == CallIds::kNineChars && !IsNineChars(given)) {
      message["tool_call_id"] = NineCharsOf(given);
    }
  }

  // The first call without a result.
  std::optional<size_t> Take(Queue& queue) {
    while (queue.first < queue.calls.size() && answered_[queue.calls[queue.first]]) ++queue.first;
    if (queue.first == queue.calls.size()) return std::nullopt;
    const size_t call = queue.calls[queue.first++];
    answered_[call] = true;
    return call;
  }

  const CallIds ids_;
  std::vector<std::string> made_;  // by call
  std::vector<bool> answered_;
  Queue in_order_;
  std::map<std::string, Queue> by_id_, by_name_;
  std::set<std::string> used_;  // kNumbered
  int next_number_ = 0;
};

}  // namespace

std::string NewCallId(CallIds ids, const std::string& response_id, int choice, int number,
                      const std::string& name) {
  if (ids == CallIds::kNumbered) return NumberedId(name, number);
  const std::string seed = fmt::format("{}/{}/{}", response_id, choice, number);
  if (ids == CallIds::kNineChars) return NineCharsOf(seed);
  return "call_" + Hex(Sha256Of(seed)).substr(0, 24);
}

CallHistory WithCallIds(const std::string& messages, CallIds ids) {
  const bool calls = messages.find("\"tool") != std::string::npos;
  if (ids == CallIds::kAny || !calls) return {.messages = messages, .calls = 0};
  OrderedJson list = OrderedJson::parse(messages);
  CallIdWriter writer(ids);
  for (OrderedJson& message : list) writer.Write(message);
  return {.messages = list.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
          .calls = writer.next_number()};
}

}  // namespace millrace::serve
