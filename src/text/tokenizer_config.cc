#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"

namespace millrace::text {
namespace {

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

// A file that does not exist adds nothing.
Status ReadTemplateFile(const std::string& path, const std::string& name, TokenizerConfig& out) {
  Result<std::string> source = ReadFile(path, kChatTemplateBytesMax);
  if (source.status().code() == StatusCode::kNotFound) return OkStatus();
  if (!source.ok()) return source.status();
  out.chat_templates[name] = std::move(source).value();
  out.template_files[name] = path;
  return OkStatus();
}

// Older processors have their template in a file of JSON.
Status ReadProcessorTemplate(const std::string& folder, TokenizerConfig& out) {
  if (out.chat_templates.contains(kDefaultTemplateName)) return OkStatus();
  const std::string path = folder + "/chat_template.json";
  MR_ASSIGN_OR_RETURN(const Json json, ReadTokenizerFile(path));
  const auto it = json.find("chat_template");
  if (it == json.end() || !it->is_string()) return OkStatus();
  out.chat_templates[kDefaultTemplateName] = it->get<std::string>();
  out.template_files[kDefaultTemplateName] = path;
  return OkStatus();
}

// The names of the files in the folder of templates, sorted.
Result<std::vector<std::string>> NamesOfTemplates(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kTemplateFolder);
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".jinja") names.push_back(at->path().stem().string());
    if (names.size() > kTemplatesMax) {
      return InvalidArgument(fmt::format("{}: more than {} templates", path, kTemplatesMax));
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return InvalidArgument(fmt::format("{}: {}", path, error.message()));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

Result<Json> ReadTokenizerFile(const std::string& path) {
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

Result<TokenizerConfig> LoadTokenizerConfig(const std::string& folder) {
  TokenizerConfig out;
  const std::string config_path = folder + "/tokenizer_config.json";
  MR_ASSIGN_OR_RETURN(Json config, ReadTokenizerFile(config_path));
  Status status = ReadTokens(config, out);
  if (status.ok()) status = ReadTemplates(config, out);
  if (!status.ok()) return status.WithContext(config_path);
  for (const auto& [name, source] : out.chat_templates) out.template_files[name] = config_path;
  const auto flag = [&config](const char* name) -> std::optional<bool> {
    const auto it = config.find(name);
    return it != config.end() && it->is_boolean() ? std::optional(it->get<bool>()) : std::nullopt;
  };
  out.add_bos_token = flag("add_bos_token");
  out.add_eos_token = flag("add_eos_token");

  const std::string map_path = folder + "/special_tokens_map.json";
  MR_ASSIGN_OR_RETURN(Json map, ReadTokenizerFile(map_path));
  if (status = ReadTokens(map, out); !status.ok()) return status.WithContext(map_path);

  MR_RETURN_IF_ERROR(ReadProcessorTemplate(folder, out));
  MR_RETURN_IF_ERROR(ReadTemplateFile(folder + "/chat_template.jinja", kDefaultTemplateName, out));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOfTemplates(folder));
  for (const std::string& name : names) {
    MR_RETURN_IF_ERROR(
        ReadTemplateFile(fmt::format("{}/{}/{}.jinja", folder, kTemplateFolder, name), name, out));
  }
  return out;
}

}  // namespace millrace::text
