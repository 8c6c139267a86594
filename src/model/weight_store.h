// WeightStore: the files that a model's weights are read from, as ranges of bytes that other
// workers may copy; or such a copy, of which only the ranges that were written are there. A file is
// named by its place in the list, so that nothing else can be asked for.
//
// The files: config.json, generation_config.json and the shard index where there is one, and the
// safetensors files. Their heads (the small files whole, and each safetensors header) say what lies
// where; with these a copy can be asked which ranges some layers need, and Model::Load reads them
// from its folder as from any other.
//
// Any thread may read and write.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/worker_messages.h"
#include "model/weight_digests.h"

namespace millrace::model {

inline constexpr uint64_t kWeightFileBytesMax = uint64_t{1} << 42;

struct WeightFile {
  std::string name;
  uint64_t bytes = 0;
};
// Bytes [begin, end) of a file.
struct WeightRange {
  size_t file = 0;
  uint64_t begin = 0, end = 0;
};

class WeightStore {
 public:
  // Of a folder with all its weights. Errors: as Model::Load.
  static Result<std::shared_ptr<WeightStore>> OfFolder(const std::string& folder);
  // In an empty folder, which files of these names and sizes are made in. Errors: as CheckList.
  static Result<std::shared_ptr<WeightStore>> NewCopy(const std::string& folder,
                                                      std::vector<WeightFile> files);
  // kInvalidArgument: a list that no model has; nothing is trusted.
  static Status CheckList(const std::vector<WeightFile>& files);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  const std::string& folder() const { return folder_; }
  const std::vector<WeightFile>& files() const { return files_; }

  // kInvalidArgument: no such range. kNotFound: not all of it is here.
  Status Read(const WeightRange& range, std::span<std::byte> out) const;
  Status Check(const WeightRange& range) const;  // whether it can be read
  // kResourceExhausted: the disk is full.
  Status Write(const WeightRange& range, std::span<const std::byte> in);
  // What of it is not here yet.
  std::vector<WeightRange> Missing(const WeightRange& range) const;

  // Small files whole, and of each safetensors file the length of its header.
  std::vector<WeightRange> LengthRanges() const;
  // Small files whole, and each safetensors header; needs LengthRanges. kInvalidArgument: a header
  // longer than its file or than the format allows.
  Result<std::vector<WeightRange>> HeadRanges() const;
  // A digest of names, sizes and heads: the same where every byte lies at the same place. Needs
  // HeadRanges.
  Result<std::string> Layout() const;
  // What a rank of a stage of these layers reads, in order; needs HeadRanges.
  Result<std::vector<WeightRange>> RangesFor(LayerRange layers, TensorRank rank) const;
  // Where the chunks of this folder's digests lie, in their order.
  Result<std::vector<WeightRange>> RangesOf(const WeightDigests& digests) const;

 private:
  WeightStore(std::string folder, std::vector<WeightFile> files);
  Status Open(size_t file, int flags);
  bool Covers(const WeightRange& range) const;  // with the lock
  Result<WeightRange> RangeOf(const FileRun& run) const;

  const std::string folder_;
  const std::vector<WeightFile> files_;
  std::vector<int> fds_;
  mutable std::mutex mutex_;
  std::vector<std::map<uint64_t, uint64_t>> here_;  // by file: begin -> end, apart from each other
};

}  // namespace millrace::model
