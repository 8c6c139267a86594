#include "text/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "text/ffi.h"

namespace millrace::text {
namespace {

// `text` as it is, or with the special tokens that it spells guarded.
Result<std::string> CheckedJson(std::string_view text, std::string_view name, Json::value_t type,
                                const SpecialGuard* guard) {
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(name);
  if (json->type() != type) {
    return InvalidArgument(fmt::format("{} must be {}, got {}", name,
                                       type == Json::value_t::array ? "an array" : "an object",
                                       json->type_name()));
  }
  if (guard != nullptr) {
    // Escapes can hide a token from a search of the text, so the strings themselves are searched.
    auto ordered = nlohmann::ordered_json::parse(text);
    if (guard->Guard(ordered)) return ordered.dump();
  }
  return std::string(text);
}

// The members of a JSON object, without its braces.
std::string_view Members(std::string_view object) {
  size_t begin = object.find('{') + 1;
  return object.substr(begin, object.rfind('}') - begin);
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

void AddTokenVariable(const char* name, const std::optional<std::string>& token, std::string& out) {
  if (!token.has_value()) return;
  if (!out.empty()) out += ',';
  out += fmt::format("\"{}\":{}", name, DumpJson(*token));
}

}  // namespace

void ChatTemplate::Deleter::operator()(MrtTemplate* handle) const { mrt_template_free(handle); }

ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::Load(
    const std::string& folder, const std::vector<std::string>& special_tokens,
    const ChatTemplateLimits& limits) {
  MR_ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(folder));
  if (config.chat_templates.empty()) return NotFound(folder + ": the model has no chat template");
  return FromConfig(config, special_tokens, limits);
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::FromConfig(
    const TokenizerConfig& config, const std::vector<std::string>& special_tokens,
    const ChatTemplateLimits& limits) {
  MR_RETURN_IF_ERROR(CheckRustAbi());
  if (config.chat_templates.empty()) return NotFound("the model has no chat template");
  std::unique_ptr<ChatTemplate> out(new ChatTemplate());
  out->guard_ = std::make_shared<const SpecialGuard>(special_tokens);
  out->limits_ = limits;
  AddTokenVariable("bos_token", config.bos_token, out->token_variables_);
  AddTokenVariable("eos_token", config.eos_token, out->token_variables_);
  AddTokenVariable("unk_token", config.unk_token, out->token_variables_);
  AddTokenVariable("pad_token", config.pad_token, out->token_variables_);
  for (const auto& [name, source] : config.chat_templates) {
    Status status = out->Add(name, source);
    if (status.ok()) continue;
    status = status.WithContext(fmt::format("chat template \"{}\"", name));
    const auto file = config.template_files.find(name);
    return file == config.template_files.end() ? status : status.WithContext(file->second);
  }
  return std::unique_ptr<const ChatTemplate>(std::move(out));
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::WithSource(
    const std::string& source) const {
  std::unique_ptr<ChatTemplate> out(new ChatTemplate());
  out->guard_ = guard_;
  out->limits_ = limits_;
  out->token_variables_ = token_variables_;
  MR_RETURN_IF_ERROR(out->Add(kDefaultTemplateName, source));
  return std::unique_ptr<const ChatTemplate>(std::move(out));
}

Status ChatTemplate::Add(const std::string& name, const std::string& source) {
  const MrtTemplateLimits limits = {limits_.source_bytes, limits_.output_bytes, limits_.fuel,
                                    limits_.recursion, limits_.work_bytes};
  source_ += source;
  MrtTemplate* handle = nullptr;
  RustBytes error;
  const MrtCode code = mrt_template_new(Data(source), source.size(), limits, &handle, error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  templates_.emplace(name, std::unique_ptr<MrtTemplate, Deleter>(handle));
  return OkStatus();
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  const bool has_tools = !IsBlank(input.tools_json);
  std::string name = kDefaultTemplateName;
  if (input.template_name.has_value()) {
    name = *input.template_name;
  } else if (has_tools && templates_.contains("tool_use")) {
    name = "tool_use";
  }
  auto it = templates_.find(name);
  if (it == templates_.end()) {
    return InvalidArgument(fmt::format("the model has no chat template named \"{}\"", name));
  }

  const SpecialGuard* guard = input.guard_special_tokens ? guard_.get() : nullptr;
  MR_ASSIGN_OR_RETURN(std::string messages,
                      CheckedJson(input.messages_json, "messages", Json::value_t::array, guard));
  // kwargs come first: of two equal keys the later one counts, so they replace nothing of ours.
  std::string context = "{";
  if (!IsBlank(input.kwargs_json)) {
    MR_ASSIGN_OR_RETURN(std::string kwargs, CheckedJson(input.kwargs_json, "chat_template_kwargs",
                                                        Json::value_t::object, guard));
    std::string_view members = Members(kwargs);
    if (!IsBlank(members)) context += fmt::format("{},", members);
  }
  // transformers passes None for tools that are not there, rather than leave them undefined;
  // templates test for both.
  std::string tools = "null";
  if (has_tools) {
    MR_ASSIGN_OR_RETURN(tools, CheckedJson(input.tools_json, "tools", Json::value_t::array, guard));
  }
  context += fmt::format("\"tools\":{},", tools);
  if (!token_variables_.empty()) context += token_variables_ + ',';
  context += fmt::format("\"messages\":{},\"add_generation_prompt\":{}}}", messages,
                         input.add_generation_prompt);

  RustBytes text;
  RustBytes error;
  MrtCode code = mrt_template_render(it->second.get(), Data(context), context.size(),
                                     input.civil_seconds, text.out(), error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  return text.ToString();
}

}  // namespace millrace::text
