#include "model/model_path.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/log.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string WithoutSlashes(std::string name) {
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return name;
}

Status CheckFolder(const std::string& folder) {
  if (Exists(folder + "/config.json")) return OkStatus();
  return NotFound(fmt::format(
      "{} has no config.json; a model is a Hugging Face folder with config.json, *.safetensors and "
      "tokenizer.json",
      Printable(folder)));
}

}  // namespace

bool IsOnHub(const std::string& model) {
  const std::string name = WithoutSlashes(model);
  return !Exists(name) && IsHubName(name);
}

Result<ModelPath> FindModel(const std::string& model, const Environment& environment,
                            const std::string& revision) {
  const std::string name = WithoutSlashes(model);
  if (IsFolder(name)) {
    if (revision != kMainRevision) {
      return InvalidArgument(fmt::format(
          "{} is a folder, which has no revisions: leave out --revision", Printable(name)));
    }
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
        "folder {} does not exist; give a model folder, or ORG/NAME of a model on the Hugging Face "
        "hub",
        Printable(name)));
  }
  if (!IsRevision(revision)) {
    return InvalidArgument(fmt::format("--revision must be a branch, a tag or a commit, got '{}'",
                                       Printable(revision)));
  }
  const std::string snapshot = RepositoryOf(name, environment).SnapshotOf(revision);
  if (IsFolder(snapshot)) {
    MR_RETURN_IF_ERROR(CheckFolder(snapshot));
    return ModelPath{snapshot, name};
  }
  return NotFound(fmt::format("no model at {} or {}; download it with: hf download {}",
                              Printable(name), Printable(snapshot, 1024), name));
}

Result<ModelPath> FindModel(const std::string& model, const std::string& revision) {
  return FindModel(model, ProcessEnvironment, revision);
}

}  // namespace millrace::model
