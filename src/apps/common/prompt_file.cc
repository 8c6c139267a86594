#include "apps/common/prompt_file.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text_lines.h"

namespace millrace::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;  // chat templates see the client's order of keys

uint64_t HashText(std::string_view text) {
  uint64_t hash = Mix64(text.size());
  for (char c : text) hash = Mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

std::string LineId(int number, std::string_view line) {
  return fmt::format("{}-{:08x}", number, static_cast<uint32_t>(HashText(line)));
}

void FillIn(OrderedJson& body, const OrderedJson& defaults) {
  const bool has_length = body.contains("max_completion_tokens");
  for (const auto& [key, value] : defaults.items()) {
    if (key == "max_tokens" && has_length) continue;
    if (!body.contains(key)) body[key] = value;
  }
}

Result<PromptEndpoint> EndpointOf(const OrderedJson& object) {
  const auto at = object.find("url");
  if (at == object.end()) return PromptEndpoint::kCompletion;
  if (*at == "/v1/completions") return PromptEndpoint::kCompletion;
  if (*at == "/v1/chat/completions") return PromptEndpoint::kChat;
  return InvalidArgument(fmt::format(
      "'url' must be /v1/completions or /v1/chat/completions, got {}", Printable(at->dump())));
}

Result<PromptItem> ParseLine(std::string_view line, int number, const OrderedJson& defaults) {
  MR_RETURN_IF_ERROR(ParseJson(line).status());  // depth and UTF-8
  OrderedJson object = OrderedJson::parse(line, nullptr, false);
  if (!object.is_object()) return InvalidArgument("must be a JSON object");
  PromptItem item;
  item.id = LineId(number, line);
  if (const auto id = object.find("custom_id"); id != object.end()) {
    if (!id->is_string() || *id == "")
      return InvalidArgument("'custom_id' must be a non-empty string");
    item.id = id->get<std::string>();
    object.erase(id);
  }
  OrderedJson body = object;
  if (const auto at = object.find("body"); at != object.end()) {
    if (!at->is_object()) return InvalidArgument("'body' must be a JSON object");
    body = *at;
    item.batch = true;
  }
  MR_ASSIGN_OR_RETURN(item.endpoint, EndpointOf(object));
  if (body.contains("messages")) item.endpoint = PromptEndpoint::kChat;
  const char* needed = item.endpoint == PromptEndpoint::kChat ? "messages" : "prompt";
  if (!body.contains(needed)) return InvalidArgument(fmt::format("'{}' is missing", needed));
  // There is only one model, and answers are written to the file as a whole.
  for (const char* key : {"model", "stream", "stream_options"}) body.erase(key);
  FillIn(body, defaults);
  item.body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return item;
}

Result<PromptItem> TextItem(std::string_view line, int number, const OrderedJson& defaults) {
  OrderedJson body = {{"prompt", std::string(line)}};
  FillIn(body, defaults);
  PromptItem item;
  item.id = LineId(number, line);
  item.body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return item;
}

}  // namespace

Result<std::vector<PromptItem>> ParsePrompts(std::string_view text, const std::string& defaults) {
  const OrderedJson fields = OrderedJson::parse(defaults);
  std::vector<PromptItem> items;
  std::unordered_map<std::string, int> lines_of_ids;
  std::optional<bool> is_json;
  LineReader lines(text);
  while (auto line = lines.Next()) {
    const size_t first = line->find_first_not_of(" \t");
    if (first == std::string_view::npos) continue;
    if (!is_json) is_json = (*line)[first] == '{';
    if (items.size() == kPromptsMax) {
      return InvalidArgument(fmt::format("holds more than {} prompts; split it", kPromptsMax));
    }
    auto item = *is_json ? ParseLine(*line, lines.number(), fields)
                         : TextItem(*line, lines.number(), fields);
    const std::string context = fmt::format("line {}", lines.number());
    if (!item.ok()) return item.status().WithContext(context);
    const auto [at, is_new] = lines_of_ids.emplace(item->id, lines.number());
    if (!is_new) {
      return InvalidArgument(fmt::format("{}: custom_id '{}' is already used in line {}", context,
                                         Printable(item->id), at->second));
    }
    items.push_back(std::move(*item));
  }
  if (items.empty()) return InvalidArgument("contains no prompt");
  return items;
}

}  // namespace millrace::apps
