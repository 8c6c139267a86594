// WeightDigests: the contents of a model's fingerprint, a digest of each chunk of each tensor. With
// them a worker that holds some of a model's bytes can check these chunk by chunk. The digests
// themselves may come from any peer, because the fingerprint verifies them.
// The fingerprint covers the configuration, every tensor's name, type and shape, and the digests.
// It does not depend on how the tensors are distributed over files. Weights up to kDigestWholeBytes
// are digested whole; of larger ones, only the beginning of every chunk.
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
  // From a folder with all weights, which are read: about a second per gigabyte or less. Errors: as
  // Model::Load; kInvalidArgument: more chunks than kDigestChunksMax.
  static Result<WeightDigests> OfFolder(const std::string& folder,
                                        int64_t whole_bytes = kDigestWholeBytes);
  // From a folder that needs only the configuration and the headers: the positions of the chunks.
  // Digests and fingerprint are absent until Take.
  static Result<WeightDigests> OfHeads(const std::string& folder);
  // Sets the digests. kInvalidArgument: their number is not that of the chunks.
  Status Take(std::vector<std::byte> digests);

  // 64 hexadecimal digits; equal on two machines if and only if they have the same model.
  const std::string& fingerprint() const { return fingerprint_; }
  // A digest of all that is not in a chunk; and the files that the chunks are in.
  const std::string& heads() const { return heads_; }
  const std::vector<std::string>& paths() const { return paths_; }

  // Concatenated in the order of the chunks.
  std::span<const std::byte> digests() const { return digests_; }

  // Positions of the chunks: tensor by tensor, in the order of loading. A linked file has the name
  // of its target.
  size_t chunks() const { return chunks_.size(); }
  FileRun RunOf(size_t chunk) const;
  // Whether `bytes` are the bytes of that chunk.
  bool Matches(size_t chunk, std::span<const std::byte> bytes) const;

 private:
  struct Chunk {
    size_t path = 0;  // index in paths_
    uint64_t begin = 0, end = 0;
  };
  static Result<WeightDigests> Of(const OpenedModel& opened, bool read, int64_t whole_bytes);
  Status AddTensor(const WeightNeed& need, const StoredTensor& tensor);
  void AddDigest(std::span<const std::byte> chunk);
  void SetFingerprint();

  bool whole_ = true;
  std::string heads_;  // a digest of everything outside the chunks
  std::vector<std::string> paths_;
  std::vector<Chunk> chunks_;
  std::vector<std::byte> digests_;
  std::string fingerprint_;
};

}  // namespace millrace::model
