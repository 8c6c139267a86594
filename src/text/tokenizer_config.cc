#include "text/tokenizer_config.h"

#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace millrace::text {
namespace {

// An empty object when the file does not exist.
Result<Json> ReadJsonObject(const std::string& path) {
  Result<std::string> content = ReadFile(path, kTokenizerConfigBytesMax);
  if (!content.ok()) {
    if (content.status().code() == StatusCode::kNotFound) return Json::object();
    return content.status();
  }
  Result<Json> json = ParseJson(*content);
  if (!json.ok()) return json.status().WithContext(path);
  if (!json->is_object()) return InvalidArgument(path + ": must be a JSON object");
  return std::move(json).value();
}

// A token is written as a string, as an object with "content", or as null.
Status ReadToken(const Json& config, const char* name, std::optional<std::string>& token) {
  auto it = config.find(name);
  if (it == config.end() || it->is_null() || token.has_value()) return OkStatus();
  const Json& value = it->is_object() ? it->value("content", Json()) : *it;
  if (!value.is_string()) {
    return InvalidArgument(std::string(name) + " must be a string or an object with a content");
  }
  token = value.get<std::string>();
  return OkStatus();
}

Status ReadTokens(const Json& config, TokenizerConfig& out) {
  MR_RETURN_IF_ERROR(ReadToken(config, "bos_token", out.bos_token));
  MR_RETURN_IF_ERROR(ReadToken(config, "eos_token", out.eos_token));
  MR_RETURN_IF_ERROR(ReadToken(config, "unk_token", out.unk_token));
  return ReadToken(config, "pad_token", out.pad_token);
}

// A template is written as a string, or as a list of {"name", "template"}.
Status ReadTemplates(const Json& config, TokenizerConfig& out) {
  auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return OkStatus();
  if (it->is_string()) {
    out.chat_templates[kDefaultTemplateName] = it->get<std::string>();
    return OkStatus();
  }
  if (!it->is_array()) return InvalidArgument("chat_template must be a string or a list");
  for (const Json& entry : *it) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("template") || !entry["template"].is_string()) {
      return InvalidArgument("chat_template's list must hold objects with a name and a template");
    }
    out.chat_templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return OkStatus();
}

}  // namespace

Result<TokenizerConfig> LoadTokenizerConfig(const std::string& folder) {
  TokenizerConfig out;
  const std::string config_path = folder + "/tokenizer_config.json";
  MR_ASSIGN_OR_RETURN(Json config, ReadJsonObject(config_path));
  Status status = ReadTokens(config, out);
  if (status.ok()) status = ReadTemplates(config, out);
  if (!status.ok()) return status.WithContext(config_path);
  for (const auto& [name, source] : out.chat_templates) out.template_files[name] = config_path;

  const std::string map_path = folder + "/special_tokens_map.json";
  MR_ASSIGN_OR_RETURN(Json map, ReadJsonObject(map_path));
  if (status = ReadTokens(map, out); !status.ok()) return status.WithContext(map_path);

  const std::string jinja_path = folder + "/chat_template.jinja";
  Result<std::string> jinja = ReadFile(jinja_path, kChatTemplateBytesMax);
  if (jinja.ok()) {
    out.chat_templates[kDefaultTemplateName] = std::move(jinja).value();
    out.template_files[kDefaultTemplateName] = jinja_path;
  } else if (jinja.status().code() != StatusCode::kNotFound) {
    return jinja.status();
  }
  return out;
}

}  // namespace millrace::text
