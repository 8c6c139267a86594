// DigestCache: the digests of weights that an earlier start has read, so that this one need not
// read them: a second or two of a processor per gigabyte. One small file for each model, in a
// folder that processes share.
//
// Weights count as the same while each of their files has the same device, inode, size and times of
// change, and the configuration and the headers are the same. Files that changed within the last
// seconds are not trusted to that: another change might leave the same times.
//
// A value; any thread. Processes may use a folder at the same time.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "model/weight_digests.h"

namespace millrace::model {

class DigestCache {
 public:
  // At most this many models; the ones that were asked for longest ago are given up.
  static constexpr size_t kModelsMax = 64;

  // folder: is made when something is kept. "": every call reads the weights. `settled`: the age at
  // which the times of a file are trusted.
  explicit DigestCache(std::string folder,
                       std::chrono::nanoseconds settled = std::chrono::seconds(3))
      : folder_(std::move(folder)), settled_(settled) {}

  // As WeightDigests::OfFolder. A file that is damaged or cannot be written costs time, and is no
  // error.
  Result<WeightDigests> Of(const std::string& model_folder) const;

 private:
  void Keep(const std::string& path, const WeightDigests& digests) const;
  void DropOldest() const;

  std::string folder_;
  std::chrono::nanoseconds settled_;
};

}  // namespace millrace::model
