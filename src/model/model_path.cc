#include "model/model_path.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRefBytesMax = 256;

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// "org/name" of letters, digits and "-_.", so that no path leads out of the cache.
bool IsHubName(const std::string& model) {
  const size_t slash = model.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == model.size()) return false;
  if (model.find('/', slash + 1) != std::string::npos) return false;
  if (model.find("..") != std::string::npos || model.front() == '.') return false;
  return model.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") ==
         std::string::npos;
}

std::string HubFolder(
    const std::function<std::optional<std::string>(const std::string&)>& environment) {
  if (const auto cache = environment("HF_HUB_CACHE"); cache && !cache->empty()) return *cache;
  if (const auto home = environment("HF_HOME"); home && !home->empty()) return *home + "/hub";
  return environment("HOME").value_or("") + "/.cache/huggingface/hub";
}

Status CheckFolder(const std::string& folder) {
  if (Exists(folder + "/config.json")) return OkStatus();
  return NotFound(fmt::format(
      "{} has no config.json; a model is a Hugging Face folder with config.json, *.safetensors and "
      "tokenizer.json",
      Printable(folder)));
}

std::string Snapshot(const std::string& repository) {
  const auto ref = ReadFile(repository + "/refs/main", kRefBytesMax);
  if (!ref.ok()) return repository + "/snapshots/main";
  std::string commit = *ref;
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  if (commit.find('/') != std::string::npos) return repository + "/snapshots/main";
  return repository + "/snapshots/" + commit;
}

}  // namespace

Result<ModelPath> FindModel(
    const std::string& model,
    const std::function<std::optional<std::string>(const std::string&)>& environment) {
  std::string name = model;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  if (IsFolder(name)) {
    MR_RETURN_IF_ERROR(CheckFolder(name));
    return ModelPath{name, name};
  }
  if (Exists(name)) {
    return NotFound(fmt::format(
        "{} is a file; a model is a Hugging Face folder with config.json, *.safetensors and "
        "tokenizer.json",
        Printable(name)));
  }
  if (!IsHubName(name)) {
    return NotFound(fmt::format(
        "folder {} does not exist; give a model folder, or ORG/NAME of a model in the Hugging Face "
        "cache",
        Printable(name)));
  }
  const size_t slash = name.find('/');
  const std::string repository = fmt::format("{}/models--{}--{}", HubFolder(environment),
                                             name.substr(0, slash), name.substr(slash + 1));
  const std::string snapshot = Snapshot(repository);
  if (IsFolder(snapshot)) {
    MR_RETURN_IF_ERROR(CheckFolder(snapshot));
    return ModelPath{snapshot, name};
  }
  return NotFound(fmt::format("no model at {} or {}; download it with: hf download {}",
                              Printable(name), Printable(snapshot, 1024), name));
}

Result<ModelPath> FindModel(const std::string& model) {
  return FindModel(model, [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace millrace::model
