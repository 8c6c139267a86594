// WeightStore: the files from which a model's weights are read, as ranges of bytes that other
// workers may copy; or such a copy, which has only the ranges that were written. A file is
// identified by its index in the list, so no other file can be requested.
//
// The files are config.json, generation_config.json, the shard index if there is one, and the
// safetensors files. Their heads (the small files whole, and each safetensors header) give the
// position of every tensor. With the heads, a copy can compute which ranges some layers need, and
// Model::Load reads those from its folder as from any other.
//
// Any thread may read and write.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "core/worker_messages.h"
#include "model/loaded_weight.h"
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
  // From a folder with all its weights. Errors: as Model::Load.
  static Result<std::shared_ptr<WeightStore>> OfFolder(const std::string& folder);
  // In an empty folder, where it creates files with these names and sizes. Errors: as CheckList.
  static Result<std::shared_ptr<WeightStore>> NewCopy(const std::string& folder,
                                                      std::vector<WeightFile> files);
  // kInvalidArgument: a list that cannot be a model's. The list is untrusted.
  static Status CheckList(const std::vector<WeightFile>& files);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  const std::string& folder() const { return folder_; }
  const std::vector<WeightFile>& files() const { return files_; }

  // kInvalidArgument: no such range. kNotFound: not all of it has been copied.
  Status Read(const WeightRange& range, std::span<std::byte> out) const;
  Status Check(const WeightRange& range) const;  // whether it can be read
  // kResourceExhausted: the disk is full.
  Status Write(const WeightRange& range, std::span<const std::byte> in);
  // The parts of it that have not been copied yet.
  std::vector<WeightRange> Missing(const WeightRange& range) const;

  // The small files whole, and the length field of each safetensors header.
  std::vector<WeightRange> LengthRanges() const;
  // The small files whole, and each safetensors header; needs LengthRanges. kInvalidArgument: a
  // header longer than its file or than the format allows.
  Result<std::vector<WeightRange>> HeadRanges() const;
  // A digest of names, sizes and heads: equal if every byte is at the same position. Needs
  // HeadRanges.
  Result<std::string> Layout() const;
  // The ranges that a rank of a stage of these layers reads beside what is `here`, in order; needs
  // HeadRanges.
  Result<std::vector<WeightRange>> RangesFor(LayerRange layers, TensorRank rank,
                                             const LoadedWeights& here = {}) const;
  // The positions of the chunks of this folder's digests, in their order.
  Result<std::vector<WeightRange>> RangesOf(const WeightDigests& digests) const;

 private:
  WeightStore(std::string folder, std::vector<WeightFile> files);
  Status Open(size_t file, int flags);
  bool Covers(const WeightRange& range) const MR_REQUIRES(mutex_);
  Result<WeightRange> RangeOf(const FileRun& run) const;

  const std::string folder_;
  const std::vector<WeightFile> files_;
  std::vector<int> fds_;
  mutable Mutex mutex_;
  // By file: begin -> end, disjoint.
  std::vector<std::map<uint64_t, uint64_t>> here_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::model
