#include "model/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/json.h"
#include "base/log.h"
#include "model/folder.h"

namespace millrace::model {
namespace {

// Reads {"metadata": ..., "weight_map": {"tensor": "file", ...}} without building a tree; refuses
// duplicate keys.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  const Status& status() const { return status_; }
  ShardIndex& index() { return index_; }
  bool seen_map() const { return seen_map_; }

  bool null() override { return Skip("null"); }
  bool boolean(bool) override { return Skip("a boolean"); }
  bool number_integer(int64_t) override { return Skip("a number"); }
  bool number_unsigned(uint64_t) override { return Skip("a number"); }
  bool number_float(double, const std::string&) override { return Skip("a number"); }
  bool binary(binary_t&) override { return Skip("binary data"); }
  bool string(std::string& value) override {
    if (!in_map_) return Skip("a string");
    if (index_.file_of.size() >= kSafetensorsTensorsMax) {
      return Fail(fmt::format("more than {} tensors", kSafetensorsTensorsMax));
    }
    if (!index_.file_of.emplace(name_, std::move(value)).second) {
      return Fail(fmt::format("tensor `{}` appears twice", Printable(name_)));
    }
    return true;
  }
  bool start_object(size_t) override { return Enter(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      opens_map_ = name == "weight_map";
      if (opens_map_ && std::exchange(seen_map_, true)) return Fail("weight_map appears twice");
    }
    name_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    status_ = InvalidArgument(fmt::format("malformed JSON at byte {}", position));
    return false;
  }

 private:
  bool Fail(std::string why) {
    status_ = InvalidArgument(std::move(why));
    return false;
  }
  bool Skip(std::string_view what) {
    if (in_map_)
      return Fail(fmt::format("tensor `{}`: {} instead of a file name", Printable(name_), what));
    if (depth_ == 0) return Fail("not an object");
    if (depth_ == 1 && opens_map_) return Fail("weight_map is not an object");
    return true;
  }
  bool Enter() {
    if (in_map_)
      return Fail(
          fmt::format("tensor `{}`: a list or an object instead of a file name", Printable(name_)));
    if (++depth_ > kJsonDepthMax) return Fail("nests too deeply");
    in_map_ = depth_ == 2 && opens_map_;
    return true;
  }
  bool Leave() {
    --depth_;
    in_map_ = false;
    return true;
  }

  Status status_;
  ShardIndex index_;
  int depth_ = 0;
  bool opens_map_ = false, in_map_ = false, seen_map_ = false;
  std::string name_;
};

bool Exists(const std::string& folder, std::string_view name) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(folder) / name, error);
}

Status NoWeights(const std::string& folder) {
  for (std::string_view pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (Exists(folder, pickle)) {
      return NotFound(
          fmt::format("{}: holds {} but no {}; pickled weights can run code and are not "
                      "read: convert them to safetensors",
                      folder, pickle, kSingleFile));
    }
  }
  return NotFound(fmt::format("{}: holds neither {} nor {}", folder, kSingleFile, kIndexFile));
}

std::string IndexPath(const std::string& folder) {
  return (std::filesystem::path(folder) / kIndexFile).string();
}

std::set<std::string> ShardsOf(const ShardIndex& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of) names.insert(file);
  return names;
}

Result<ShardIndex> ReadIndex(const std::string& folder) {
  if (!Exists(folder, kIndexFile)) return NoWeights(folder);
  MR_ASSIGN_OR_RETURN(std::string text, ReadInFolder(folder, kIndexFile, kIndexBytesMax));
  Result<ShardIndex> index = ParseShardIndex(text);
  if (!index.ok()) return index.status().WithContext(IndexPath(folder));
  const size_t shards = ShardsOf(*index).size();
  if (shards > kShardsMax) {
    return InvalidArgument(
        fmt::format("{}: {} shards, the limit is {}", IndexPath(folder), shards, kShardsMax));
  }
  return index;
}

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view text) {
  IndexReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return reader.status();
  if (!reader.seen_map() || reader.index().file_of.empty()) {
    return InvalidArgument("no weight_map, or an empty one");
  }
  return std::move(reader.index());
}

Status WeightFiles::AddShard(std::string_view name) {
  MR_ASSIGN_OR_RETURN(std::string path, ResolveInFolder(folder_, name));
  MR_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  Result<SafetensorsHeader> header = ParseSafetensors(file.bytes());
  if (!header.ok()) return header.status().WithContext(path);
  shards_.push_back(std::make_shared<const Shard>(
      Shard{std::move(path), std::move(file), std::move(header).value()}));
  return OkStatus();
}

Result<WeightFiles> WeightFiles::Open(const std::string& folder) {
  WeightFiles files;
  files.folder_ = folder;
  if (Exists(folder, kSingleFile)) {
    MR_RETURN_IF_ERROR(files.AddShard(kSingleFile));
    for (const auto& [name, entry] : files.shards_[0]->header.tensors) {
      files.tensors_.emplace(name, std::pair(files.shards_[0], &entry));
    }
    return files;
  }
  MR_ASSIGN_OR_RETURN(const ShardIndex index, ReadIndex(folder));
  MR_RETURN_IF_ERROR(files.AddTensors(index, IndexPath(folder)));
  return files;
}

Result<std::vector<std::string>> WeightFileNames(const std::string& folder) {
  if (Exists(folder, kSingleFile)) return std::vector{std::string(kSingleFile)};
  MR_ASSIGN_OR_RETURN(const ShardIndex index, ReadIndex(folder));
  std::vector<std::string> names = {std::string(kIndexFile)};
  const std::set<std::string> shards = ShardsOf(index);
  names.insert(names.end(), shards.begin(), shards.end());
  return names;
}

Status WeightFiles::AddTensors(const ShardIndex& index, const std::string& index_path) {
  std::map<std::string, std::shared_ptr<const Shard>> shard_of;
  for (const std::string& name : ShardsOf(index)) {
    Status status = AddShard(name);
    if (status.code() == StatusCode::kNotFound) {
      return NotFound(
          fmt::format("{}: shard {} is missing, download it again", index_path, Printable(name)));
    }
    MR_RETURN_IF_ERROR(status);
    shard_of[name] = shards_.back();
  }
  for (const auto& [tensor, file] : index.file_of) {
    const std::shared_ptr<const Shard>& shard = shard_of[file];
    auto entry = shard->header.tensors.find(tensor);
    if (entry == shard->header.tensors.end()) {
      return InvalidArgument(
          fmt::format("{}: tensor `{}` is listed in {}, which has none of that "
                      "name",
                      index_path, Printable(tensor), Printable(file)));
    }
    tensors_.emplace(tensor, std::pair(shard, &entry->second));
  }
  return OkStatus();
}

std::optional<StoredTensor> WeightFiles::Find(std::string_view name) const {
  auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) return {};
  const auto& [shard, entry] = found->second;
  return StoredTensor{entry, {shard, &shard->file}, &shard->path};
}

}  // namespace millrace::model
