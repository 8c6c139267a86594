// FindModel: finds the folder of a model that is named on the command line. It looks at this
// machine only; apps/hub downloads what is missing. Any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "model/hub_cache.h"

namespace millrace::model {

struct ModelPath {
  std::string folder;  // has a config.json
  std::string name;    // as the user wrote it, without trailing slashes
};

// Whether `model` names a repository of the hub: ORG/NAME, and no file or folder of that name.
bool IsOnHub(const std::string& model);

// `model` is a folder, or ORG/NAME: then it is the snapshot of `revision` in the Hugging Face cache
// (hub_cache.h). kNotFound lists the paths tried and the command that downloads the model;
// kInvalidArgument: a folder has no revisions.
Result<ModelPath> FindModel(const std::string& model, const Environment& environment,
                            const std::string& revision = std::string(kMainRevision));

// With the process's own environment.
Result<ModelPath> FindModel(const std::string& model,
                            const std::string& revision = std::string(kMainRevision));

}  // namespace millrace::model
