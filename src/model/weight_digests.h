// WeightDigests: what a model's fingerprint is made of, a digest of each chunk of each tensor. With
// them whoever has some of a model's bytes can check these, chunk by chunk; and the digests
// themselves, from whomever they come, by the fingerprint that they add up to.
//
// The fingerprint is of the configuration, of every tensor's name, type and shape, and of the
// digests; how the tensors are spread over files does not count. Weights up to kDigestWholeBytes
// are digested whole; of more, the beginning of every chunk.
//
// A value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/opened_model.h"
#include "model/weight_plan.h"

namespace millrace::model {

inline constexpr size_t kDigestBytes = 32;  // SHA-256
inline constexpr size_t kDigestChunkBytes = size_t{1} << 20;
inline constexpr size_t kDigestChunksMax = size_t{1} << 22;
inline constexpr int64_t kDigestWholeBytes = int64_t{8} << 30;
inline constexpr size_t kDigestSampleBytes = 4096;

class WeightDigests {
 public:
  // Of a folder with all weights, which are read: seconds per gigabyte or less. Errors: as
  // Model::Load; kInvalidArgument: more chunks than kDigestChunksMax.
  static Result<WeightDigests> OfFolder(const std::string& folder,
                                        int64_t whole_bytes = kDigestWholeBytes);
  // Of a folder of which only the configuration and the headers need be there: where the chunks
  // lie. Without digests and fingerprint, until these are taken from elsewhere.
  static Result<WeightDigests> OfHeads(const std::string& folder);
  // kInvalidArgument: not as many as there are chunks.
  Status Take(std::vector<std::byte> digests);

  // 64 hexadecimal digits; tells whether two machines have the same model.
  const std::string& fingerprint() const { return fingerprint_; }
  // One after the other, in the order of the chunks.
  std::span<const std::byte> digests() const { return digests_; }

  // Where they lie: of one tensor after the other, in the order of loading. A linked file is named
  // by what it links to.
  size_t chunks() const { return chunks_.size(); }
  FileRun RunOf(size_t chunk) const;
  // Whether these are the bytes of that chunk.
  bool Matches(size_t chunk, std::span<const std::byte> bytes) const;

 private:
  struct Chunk {
    size_t path = 0;  // in paths_
    uint64_t begin = 0, end = 0;
  };
  static Result<WeightDigests> Of(const OpenedModel& opened, bool read, int64_t whole_bytes);
  Status AddTensor(const WeightNeed& need, const StoredTensor& tensor);
  void AddDigest(std::span<const std::byte> chunk);
  void SetFingerprint();

  bool whole_ = true;
  std::string heads_;  // a digest of what is not in the chunks
  std::vector<std::string> paths_;
  std::vector<Chunk> chunks_;
  std::vector<std::byte> digests_;
  std::string fingerprint_;
};

}  // namespace millrace::model
