// WeightFiles: the safetensors files of one model folder, mapped read-only, and the position of
// each tensor. Either one file (`model.safetensors`) or shards named by
// `model.safetensors.index.json`. It owns the maps together with the StoredTensors. Any thread may
// read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "model/safetensors.h"

namespace millrace::model {

inline constexpr size_t kIndexBytesMax = 100'000'000;
inline constexpr size_t kShardsMax = 4096;
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// model.safetensors.index.json: tensor -> file. Names are checked when the files are opened.
struct ShardIndex {
  std::unordered_map<std::string, std::string> file_of;
};
Result<ShardIndex> ParseShardIndex(std::string_view text);

// The safetensors files of a folder in the order in which Open reads them; the index, if any, is
// first.
Result<std::vector<std::string>> WeightFileNames(const std::string& folder);

// The position of a tensor's bytes. The file stays mapped; the other members live as long as the
// WeightFiles.
struct StoredTensor {
  const TensorEntry* entry = nullptr;
  std::shared_ptr<const MappedFile> file;
  const std::string* path = nullptr;  // for messages

  const uint8_t* data() const { return file->bytes().data() + entry->begin; }
  size_t bytes() const { return entry->end - entry->begin; }
};

class WeightFiles {
 public:
  // Maps every file and checks every header; reads no weights.
  static Result<WeightFiles> Open(const std::string& folder);

  std::optional<StoredTensor> Find(std::string_view name) const;
  const std::string& folder() const { return folder_; }

 private:
  struct Shard {
    std::string path;
    MappedFile file;
    SafetensorsHeader header;
  };
  Status AddShard(std::string_view name);
  Status AddTensors(const ShardIndex& index, const std::string& index_path);

  std::string folder_;
  std::vector<std::shared_ptr<const Shard>> shards_;
  std::unordered_map<std::string, std::pair<std::shared_ptr<const Shard>, const TensorEntry*>>
      tensors_;
};

}  // namespace millrace::model
