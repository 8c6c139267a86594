#include "ops/hub/fetch_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/log.h"
#include "ops/hub/access.h"
#include "ops/hub/hub_client.h"
#include "ops/hub/snapshot.h"

namespace millrace::ops {
namespace {

// A model without tokenizer can be profiled.
constexpr char kOptionalFile[] = "tokenizer.json";

Status NotComplete(const model::ModelPath& found, const std::vector<std::string>& missing) {
  return NotFound(fmt::format(
      "{} is not complete in the cache: {} lacks {}; leave out --offline (HF_HUB_OFFLINE) to "
      "download that",
      found.name, Printable(found.folder, 1024), fmt::join(missing, ", ")));
}

// What can be said without the network; the path is empty if the model must be downloaded.
Result<model::ModelPath> FindHere(const std::string& model, const HubFlags& flags) {
  const auto found = model::FindModel(model, flags.revision);
  if (!model::IsOnHub(model)) return found;
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found;
  const bool may_download = MayDownload(model, flags);
  if (!found.ok()) {
    if (may_download) return model::ModelPath{};
    return NotFound(
        fmt::format("{}; or leave out --offline (HF_HUB_OFFLINE), and Millrace downloads it",
                    found.status().message()));
  }
  std::vector<std::string> missing = model::MissingFiles(found->folder);
  if (!missing.empty() && may_download) return model::ModelPath{};
  std::erase(missing, kOptionalFile);
  if (!missing.empty()) return NotComplete(*found, missing);
  return found;
}

}  // namespace

bool MayDownload(const std::string& model, const HubFlags& flags) {
  return model::IsOnHub(model) && !flags.offline && !IsOffline(model::ProcessEnvironment);
}

Status CheckModel(const std::string& model, const HubFlags& flags) {
  MR_ASSIGN_OR_RETURN(const model::ModelPath found, FindHere(model, flags));
  if (!found.folder.empty()) return OkStatus();
  return ReadHubAccess(model::ProcessEnvironment).status();
}

Result<model::ModelPath> FetchModel(const std::string& model, const HubFlags& flags) {
  MR_ASSIGN_OR_RETURN(const model::ModelPath found, FindHere(model, flags));
  if (!found.folder.empty()) return found;
  std::string name = model;
  while (name.ends_with('/')) name.pop_back();
  MR_ASSIGN_OR_RETURN(HubAccess access, ReadHubAccess(model::ProcessEnvironment));
  MR_ASSIGN_OR_RETURN(const auto client, HubClient::Create(std::move(access)));
  MR_ASSIGN_OR_RETURN(
      std::string folder,
      DownloadSnapshot(*client, model::RepositoryOf(name, model::ProcessEnvironment),
                       {.revision = flags.revision}));
  return model::ModelPath{std::move(folder), std::move(name)};
}

}  // namespace millrace::ops
