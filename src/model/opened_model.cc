#include "model/opened_model.h"

#include <filesystem>
#include <utility>

#include "model/config.h"

namespace millrace::model {

Result<OpenedModel> OpenedModel::Open(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(Json config, ReadConfig(folder));
  const std::string label = (std::filesystem::path(folder) / kConfigFile).string();
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, NewDecoder(config, label));
  ConfigReader names(config, label);
  const std::vector<std::string> architectures = names.Strings("architectures");
  decoder->mutable_spec().architecture =
      architectures.empty() ? names.String("model_type", "") : architectures[0];
  MR_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(folder));
  return OpenedModel{std::move(config), std::move(decoder), std::move(files)};
}

}  // namespace millrace::model
