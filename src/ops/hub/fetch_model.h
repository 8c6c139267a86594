// FetchModel: the folder of the model that a command line names, downloaded from the Hugging Face
// hub if this machine does not have it. Blocks. One thread.
#pragma once

#include <string>

#include "base/status.h"
#include "model/hub_cache.h"
#include "model/model_path.h"

namespace millrace::ops {

// --revision and --offline.
struct HubFlags {
  std::string revision = std::string(model::kMainRevision);
  bool offline = false;
};

// A folder is taken as it is, and so is a snapshot that the cache has whole: then the hub is not
// asked. Without a network (--offline, HF_HUB_OFFLINE) kNotFound says what is missing.
Result<model::ModelPath> FetchModel(const std::string& model, const HubFlags& flags);

// The errors of FetchModel that need neither network nor time.
Status CheckModel(const std::string& model, const HubFlags& flags);

// Whether FetchModel may download.
bool MayDownload(const std::string& model, const HubFlags& flags);

}  // namespace millrace::ops
