#include "text/content_format.h"

#include <utility>

namespace millrace::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
constexpr const char* kSample = "sample7text";
constexpr const char* kTool = "sample_tool";

OrderedJson PartsOf(const std::string& text) {
  return OrderedJson::array({OrderedJson{{"type", "text"}, {"text", text}}});
}

OrderedJson Message(const std::string& role, OrderedJson content) {
  return {{"role", role}, {"content", std::move(content)}};
}

OrderedJson MessageWithCall(OrderedJson content) {
  OrderedJson message = Message("assistant", std::move(content));
  // Some templates insist on nine letters or digits.
  message["tool_calls"] = OrderedJson::array(
      {OrderedJson{{"id", "sample123"},
                   {"type", "function"},
                   {"function", {{"name", kTool}, {"arguments", OrderedJson::object()}}}}});
  return message;
}

// A conversation in which a message of `role` has this content. The others' content has a form
// that no template refuses, because it is empty.
OrderedJson Conversation(const std::string& role, OrderedJson content) {
  OrderedJson message = Message(role, std::move(content));
  OrderedJson list = OrderedJson::array();
  if (role == "system" || role == "developer") {
    list = {std::move(message), Message("user", "")};
  } else if (role == "user") {
    list.push_back(std::move(message));
  } else if (role == "assistant") {
    list = {Message("user", ""), std::move(message)};
  } else {
    message["name"] = kTool;
    message["tool_call_id"] = "sample123";
    list = {Message("user", ""), MessageWithCall(""), std::move(message)};
  }
  return list;
}

bool Shows(const Result<std::string>& text, const char* what) {
  return text.ok() && text->find(what) != std::string::npos;
}

void FindForm(const std::string& role, const RenderMessages& render, ContentForms& forms) {
  const Result<std::string> of_parts = render(Conversation(role, PartsOf(kSample)));
  if (!Shows(of_parts, kSample)) return;
  const Result<std::string> of_string = render(Conversation(role, kSample));
  if (Shows(of_string, kSample)) {
    // A template that prints the list itself does not print the same.
    if (*of_parts == *of_string) forms.takes_parts.insert(role);
  } else if (of_parts->find("type") == std::string::npos) {
    forms.takes_parts.insert(role);
    forms.needs_parts.insert(role);
  }
}

std::string StringOf(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void ShapeOne(const ContentForms& forms, OrderedJson& message) {
  if (!message.is_object()) return;
  OrderedJson& content = message["content"];
  const std::string role = StringOf(message, "role");
  const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].empty();
  if (content.empty() || content == OrderedJson("")) {
    if (has_calls && forms.needs_null_with_calls && role == "assistant") {
      content = nullptr;
    } else {
      content = forms.needs_parts.contains(role) ? OrderedJson::array() : OrderedJson("");
    }
  } else if (content.is_string()) {
    if (forms.needs_parts.contains(role)) content = PartsOf(content.get<std::string>());
  } else if (content.is_array() && !forms.takes_parts.contains(role)) {
    std::string joined;
    for (size_t i = 0; i < content.size(); ++i) {
      if (i > 0) joined += '\n';
      joined += StringOf(content[i], "text");
    }
    content = std::move(joined);
  }
}

}  // namespace

ContentForms FindContentForms(ContentFormat format, const RenderMessages& render) {
  ContentForms forms;
  for (const char* role : kRoles) {
    if (format == ContentFormat::kAuto) FindForm(role, render, forms);
    if (format != ContentFormat::kParts) continue;
    forms.takes_parts.insert(role);
    forms.needs_parts.insert(role);
  }
  if (format == ContentFormat::kParts) return forms;
  const auto shows_call = [&](OrderedJson content) {
    const OrderedJson list = {Message("user", kSample), MessageWithCall(std::move(content))};
    return Shows(render(list), kTool);
  };
  forms.needs_null_with_calls = !shows_call("") && shows_call(nullptr);
  return forms;
}

void ShapeContent(const ContentForms& forms, OrderedJson& messages) {
  for (OrderedJson& message : messages) ShapeOne(forms, message);
}

}  // namespace millrace::text
