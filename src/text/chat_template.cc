#include "text/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "text/ffi.h"

namespace millrace::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kLoopOverNone = "a for loop needs a list, got none";  // operators.rs

Result<OrderedJson> CheckedJson(std::string_view text, std::string_view name, Json::value_t type) {
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(name);
  if (json->type() != type) {
    return InvalidArgument(fmt::format("{} must be {}, got {}", name,
                                       type == Json::value_t::array ? "an array" : "an object",
                                       json->type_name()));
  }
  return OrderedJson::parse(text);  // in the order of the client
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

void AddTokenVariable(const char* name, const std::optional<std::string>& token, std::string& out) {
  if (!token.has_value()) return;
  if (!out.empty()) out += ',';
  out += fmt::format("\"{}\":{}", name, DumpJson(*token));
}

// The messages, tools and further variables of one render.
struct Variables {
  OrderedJson messages, tools, kwargs;

  // Whether special tokens could be made of what the client wrote.
  bool Mark(const SpecialGuard& guard) {
    bool marked = guard.Mark(messages);
    marked |= guard.Mark(tools);
    marked |= guard.Mark(kwargs);
    return marked;
  }
};

Result<Variables> ReadVariables(const ChatInput& input) {
  Variables made;
  MR_ASSIGN_OR_RETURN(made.messages,
                      CheckedJson(input.messages_json, "messages", Json::value_t::array));
  if (!IsBlank(input.kwargs_json)) {
    MR_ASSIGN_OR_RETURN(
        made.kwargs, CheckedJson(input.kwargs_json, "chat_template_kwargs", Json::value_t::object));
  }
  if (!IsBlank(input.tools_json)) {
    MR_ASSIGN_OR_RETURN(made.tools, CheckedJson(input.tools_json, "tools", Json::value_t::array));
  }
  return made;
}

// A lone surrogate of a client's escapes has no UTF-8.
std::string TextOfJson(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// kwargs come first: of two equal keys the later one counts, so they replace nothing of ours but
// "documents". transformers passes None for tools and documents that are not there, rather than
// leave them undefined; templates test for both.
std::string ContextOf(const Variables& variables, const std::string& tokens, bool add_prompt) {
  std::string context = "{\"documents\":null,";
  for (const auto& [name, value] : variables.kwargs.items()) {
    context += fmt::format("{}:{},", TextOfJson(name), TextOfJson(value));
  }
  if (!tokens.empty()) context += tokens + ',';
  return context + fmt::format("\"tools\":{},\"messages\":{},\"add_generation_prompt\":{}}}",
                               TextOfJson(variables.tools), TextOfJson(variables.messages),
                               add_prompt);
}

}  // namespace

void ChatTemplate::Deleter::operator()(MrtTemplate* handle) const { mrt_template_free(handle); }

ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::Load(
    const std::string& folder, const std::vector<std::string>& special_tokens, ContentFormat format,
    const ChatTemplateLimits& limits) {
  MR_ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(folder));
  if (config.chat_templates.empty()) return NotFound(folder + ": the model has no chat template");
  return FromConfig(config, special_tokens, format, limits);
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::FromConfig(
    const TokenizerConfig& config, const std::vector<std::string>& special_tokens,
    ContentFormat format, const ChatTemplateLimits& limits) {
  MR_RETURN_IF_ERROR(CheckRustAbi());
  if (config.chat_templates.empty()) return NotFound("the model has no chat template");
  std::unique_ptr<ChatTemplate> out(new ChatTemplate());
  out->guard_ = std::make_shared<const SpecialGuard>(special_tokens);
  out->format_ = format;
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
  out->format_ = format_;
  out->limits_ = limits_;
  out->token_variables_ = token_variables_;
  MR_RETURN_IF_ERROR(out->Add(kDefaultTemplateName, source));
  return std::unique_ptr<const ChatTemplate>(std::move(out));
}

Status ChatTemplate::Add(const std::string& name, const std::string& source) {
  const MrtTemplateLimits limits = {limits_.source_bytes, limits_.output_bytes, limits_.fuel,
                                    limits_.recursion, limits_.work_bytes};
  MrtTemplate* handle = nullptr;
  RustBytes error;
  const MrtCode code = mrt_template_new(Data(source), source.size(), limits, &handle, error.out());
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  Named& added = templates_[name];
  added.handle.reset(handle);
  added.source = source;
  all_sources_ += source;
  bool exceeded = false;  // a template that needs too much is asked once
  added.forms = FindContentForms(format_, [&](const OrderedJson& messages) {
    return exceeded ? Result<std::string>(InvalidArgument("a limit was exceeded"))
                    : Probe(added, messages, &exceeded);
  });
  return OkStatus();
}

const std::string& ChatTemplate::source() const {
  static const std::string none;
  const auto found = templates_.find(kDefaultTemplateName);
  return found == templates_.end() ? none : found->second.source;
}

const std::string& ChatTemplate::tool_source() const {
  const auto found = templates_.find(kToolTemplateName);
  return found == templates_.end() ? source() : found->second.source;
}

std::map<std::string, std::string> ChatTemplate::sources() const {
  std::map<std::string, std::string> sources;
  for (const auto& [name, named] : templates_) sources[name] = named.source;
  return sources;
}

Result<const ChatTemplate::Named*> ChatTemplate::Find(const ChatInput& input) const {
  std::string name = kDefaultTemplateName;
  if (input.template_name.has_value()) {
    name = *input.template_name;
  } else if (!IsBlank(input.tools_json) && templates_.contains(kToolTemplateName)) {
    name = kToolTemplateName;
  }
  if (const auto found = templates_.find(name); found != templates_.end()) return &found->second;
  std::string names;
  for (const auto& [known, named] : templates_) names += (names.empty() ? "" : ", ") + known;
  return InvalidArgument(
      fmt::format("the model has no chat template named \"{}\"; it has {}", name, names));
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  MR_ASSIGN_OR_RETURN(const Named* named, Find(input));
  MR_ASSIGN_OR_RETURN(Variables variables, ReadVariables(input));
  ShapeContent(named->forms, variables.messages);
  const bool marked = input.guard_special_tokens && variables.Mark(*guard_);
  const auto run = [&] {
    const std::string context = ContextOf(variables, token_variables_, input.add_generation_prompt);
    return Run(*named, context, marked, input.civil_seconds);
  };
  Result<std::string> text = run();
  // A template that is for tools alone loops over them without a question.
  if (!text.ok() && variables.tools.is_null() && text.status().message().find(kLoopOverNone) == 0) {
    variables.tools = OrderedJson::array();
    if (Result<std::string> again = run(); again.ok()) text = std::move(again);
  }
  MR_RETURN_IF_ERROR(text.status());
  return marked ? guard_->Guard(*text) : *std::move(text);
}

Result<std::string> ChatTemplate::Probe(const Named& named, const OrderedJson& messages,
                                        bool* exceeded) const {
  const Variables variables{.messages = messages, .tools = nullptr, .kwargs = nullptr};
  return Run(named, ContextOf(variables, token_variables_, false), false, 0, exceeded);
}

Result<std::string> ChatTemplate::Run(const Named& named, const std::string& context,
                                      bool has_twins, int64_t civil_seconds, bool* exceeded) const {
  const std::string_view twins = has_twins ? guard_->twins() : std::string_view();
  RustBytes text;
  RustBytes error;
  const MrtCode code =
      mrt_template_render(named.handle.get(), Data(context), context.size(), Data(twins),
                          twins.size(), civil_seconds, text.out(), error.out());
  if (exceeded != nullptr) *exceeded = code == MRT_LIMIT;
  MR_RETURN_IF_ERROR(StatusOf(code, error));
  return text.ToString();
}

}  // namespace millrace::text
