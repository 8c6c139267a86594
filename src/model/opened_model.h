// OpenedModel: a model folder whose configuration and headers have been read and checked, without
// weights. Owns the maps of its files. One thread.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "model/architecture.h"
#include "model/weight_files.h"

namespace millrace::model {

struct OpenedModel {
  // Errors: as Model::Load.
  static Result<OpenedModel> Open(const std::string& folder);

  Json config;
  std::unique_ptr<Decoder> decoder;
  WeightFiles files;
};

}  // namespace millrace::model
