#include "serve/request/message_forms.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "base/json.h"

namespace millrace::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string TextOfForm(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool HasCalls(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

void ForEachArguments(OrderedJson& messages, const std::function<void(OrderedJson&)>& change) {
  for (OrderedJson& message : messages) {
    if (!HasCalls(message)) continue;
    for (OrderedJson& call : message["tool_calls"]) {
      if (call.is_object() && call["function"].is_object()) change(call["function"]["arguments"]);
    }
  }
}

// Each call has a message of its own, and its result follows it.
OrderedJson OneCallPerMessage(const OrderedJson& messages) {
  OrderedJson made = OrderedJson::array();
  for (size_t i = 0; i < messages.size();) {
    const OrderedJson& message = messages[i++];
    if (!HasCalls(message) || message["tool_calls"].size() == 1) {
      made.push_back(message);
      continue;
    }
    std::vector<const OrderedJson*> results;
    while (i < messages.size() && messages[i].value("role", OrderedJson()) == OrderedJson("tool")) {
      results.push_back(&messages[i++]);
    }
    OrderedJson one = message;
    for (const OrderedJson& call : message["tool_calls"]) {
      one["tool_calls"] = OrderedJson::array({call});
      made.push_back(one);
      one["content"] = "";
      const OrderedJson id = call.value("id", OrderedJson());
      auto result = std::ranges::find_if(results, [&id](const OrderedJson* given) {
        return !id.is_null() && given->value("tool_call_id", OrderedJson()) == id;
      });
      if (result == results.end() && id.is_null() && !results.empty()) result = results.begin();
      if (result == results.end()) continue;
      made.push_back(**result);
      results.erase(result);
    }
    for (const OrderedJson* rest : results) made.push_back(*rest);
  }
  return made;
}

}  // namespace

std::vector<std::string> OtherMessageForms(const std::string& messages) {
  if (messages.find("\"tool_calls\"") == std::string::npos) return {};
  const OrderedJson list = OrderedJson::parse(messages);
  if (std::ranges::none_of(list, HasCalls)) return {};
  std::vector<std::string> forms;
  OrderedJson texts = list;
  ForEachArguments(texts, [](OrderedJson& arguments) {
    if (!arguments.is_string()) arguments = arguments.is_null() ? "{}" : TextOfForm(arguments);
  });
  forms.push_back(TextOfForm(texts));
  // Those of a call that was cut off are no object.
  OrderedJson objects = list;
  ForEachArguments(objects, [](OrderedJson& arguments) {
    if (!arguments.is_object()) arguments = OrderedJson::object();
  });
  forms.push_back(TextOfForm(objects));
  const bool parallel = std::ranges::any_of(list, [](const OrderedJson& message) {
    return HasCalls(message) && message["tool_calls"].size() > 1;
  });
  if (parallel) forms.push_back(TextOfForm(OneCallPerMessage(objects)));
  return forms;
}

}  // namespace millrace::serve
