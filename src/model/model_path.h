// FindModel: finds the folder of a model that is named on the command line.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"

namespace millrace::model {

struct ModelPath {
  std::string folder;  // has a config.json
  std::string name;    // as the user wrote it, without trailing slashes
};

// `model` is a folder, or "org/name", looked for in the Hugging Face cache ($HF_HUB_CACHE, else
// $HF_HOME/hub, else $HOME/.cache/huggingface/hub): snapshots/<the commit of refs/main>. kNotFound
// lists the paths tried and the command that downloads the model.
Result<ModelPath> FindModel(
    const std::string& model,
    const std::function<std::optional<std::string>(const std::string&)>& environment);

// With the process's own environment.
Result<ModelPath> FindModel(const std::string& model);

}  // namespace millrace::model
