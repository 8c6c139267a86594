#include "ops/hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "model/config.h"
#include "model/folder.h"
#include "model/hub_cache.h"
#include "model/weight_files.h"

namespace millrace::ops {
namespace {

constexpr std::string_view kTemplateFolder = "additional_chat_templates/";
constexpr size_t kTemplatesMax = 64;  // as of text::LoadTokenizerConfig
constexpr size_t kEtagBytesMax = 128;
constexpr size_t kSha1Digits = 40, kSha256Digits = 64;
constexpr std::array<std::string_view, 8> kSmallFiles = {
    model::kConfigFile,      model::kGenerationFile,    "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja",   "chat_template.json"};

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status Malformed(std::string_view why) {
  return DataLoss(fmt::format("the hub's list of files is malformed: {}", why));
}

std::string TextOf(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::optional<int64_t> BytesOf(const Json& object) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_integer()) return std::nullopt;
  if (at->is_number_unsigned() && at->get<uint64_t>() > uint64_t{kHubFileBytesMax}) return -1;
  return at->get<int64_t>();
}

// Without what a digest and a size need, none.
Result<std::optional<HubBlob>> BlobOf(const Json& entry, const std::string& name) {
  HubBlob blob{.etag = TextOf(entry, "blobId"), .digest = BlobDigest::kGitSha1};
  size_t digits = kSha1Digits;
  std::optional<int64_t> bytes = BytesOf(entry);
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    blob = {.etag = TextOf(*lfs, "sha256"), .digest = BlobDigest::kSha256};
    if (blob.etag.empty()) blob.etag = TextOf(*lfs, "oid");
    digits = kSha256Digits;
    bytes = BytesOf(*lfs);
  }
  if (blob.etag.empty() || !bytes) return std::optional<HubBlob>();
  if (!IsHex(blob.etag, digits)) {
    return Malformed(fmt::format("{} has no digest of {} digits", Printable(name, 60), digits));
  }
  if (*bytes < 0 || *bytes > kHubFileBytesMax) {
    return Malformed(
        fmt::format("the size of {} is not in [0, {}]", Printable(name, 60), kHubFileBytesMax));
  }
  blob.bytes = *bytes;
  return std::optional<HubBlob>(std::move(blob));
}

}  // namespace

bool IsNamedTemplate(std::string_view name) {
  if (!name.starts_with(kTemplateFolder) || !name.ends_with(".jinja")) return false;
  return model::IsPlainName(name.substr(kTemplateFolder.size()));
}

bool IsEtag(std::string_view text) {
  return !text.empty() && text.size() <= kEtagBytesMax && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

const HubFile* HubListing::Find(std::string_view name) const {
  const auto at = std::ranges::find(files, name, &HubFile::name);
  return at == files.end() ? nullptr : &*at;
}

Result<HubListing> ParseHubListing(std::string_view text) {
  const auto parsed = ParseJson(text);
  if (!parsed.ok()) return Malformed(parsed.status().message());
  if (!parsed->is_object()) return Malformed("it is not an object");
  HubListing listing{.commit = TextOf(*parsed, "sha")};
  if (!model::IsCommit(listing.commit)) return Malformed("it names no commit");
  const auto siblings = parsed->find("siblings");
  if (siblings == parsed->end() || !siblings->is_array()) return Malformed("it has no siblings");
  if (siblings->size() > kListingFilesMax) {
    return Status(StatusCode::kTooLarge,
                  fmt::format("the repository has {} files, and the limit is {}; download the "
                              "model's own into a folder, and give that",
                              siblings->size(), kListingFilesMax));
  }
  for (const Json& entry : *siblings) {
    if (!entry.is_object()) return Malformed("a sibling is not an object");
    HubFile file{.name = TextOf(entry, "rfilename")};
    // Other files in folders are not of a model.
    if (!model::IsPlainName(file.name) && !IsNamedTemplate(file.name)) continue;
    MR_ASSIGN_OR_RETURN(file.blob, BlobOf(entry, file.name));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

Status CheckHubListing(const HubListing& listing, const std::string& repository) {
  if (listing.Find(model::kConfigFile) == nullptr) {
    return NotFound(fmt::format(
        "{} has no config.json, so it is no model in the format of transformers", repository));
  }
  if (listing.Find(model::kSingleFile) != nullptr || listing.Find(model::kIndexFile) != nullptr) {
    return OkStatus();
  }
  for (const std::string_view other : {".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}) {
    const auto has = [&](const HubFile& file) { return file.name.ends_with(other); };
    if (std::ranges::any_of(listing.files, has)) {
      return NotFound(fmt::format(
          "{} has its weights as *{} only, and Millrace reads safetensors: give a repository that "
          "has {}, or convert them",
          repository, other, model::kSingleFile));
    }
  }
  return NotFound(
      fmt::format("{} has neither {} nor {}", repository, model::kSingleFile, model::kIndexFile));
}

std::vector<std::string> SmallFilesOf(const HubListing& listing) {
  std::vector<std::string> names;
  for (const std::string_view name : kSmallFiles) {
    if (listing.Find(name) != nullptr) names.emplace_back(name);
  }
  size_t templates = 0;
  for (const HubFile& file : listing.files) {
    if (IsNamedTemplate(file.name) && ++templates <= kTemplatesMax) names.push_back(file.name);
  }
  if (listing.Find(model::kSingleFile) == nullptr) names.emplace_back(model::kIndexFile);
  return names;
}

}  // namespace millrace::ops
