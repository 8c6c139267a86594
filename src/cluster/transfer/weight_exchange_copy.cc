// The part of WeightExchange that begins and fills a copy.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/units.h"
#include "cluster/transfer/pull_window.h"
#include "cluster/transfer/weight_exchange.h"

namespace millrace::cluster {
namespace {

namespace fs = std::filesystem;
using model::WeightRange;
using Ask = WeightRequest::Ask;

constexpr int kCopiesMax = 64;  // by processes that share a parent folder
constexpr std::string_view kCopyName = "weights";

}  // namespace

// Copies configuration, headers and digests from one source, because they can be checked only
// together.
Status WeightExchange::BeginCopy(std::vector<Source>& sources, const Progress& progress) {
  for (Source& source : sources) {
    if (!source.failed.ok()) continue;
    MR_RETURN_IF_ERROR(TakeFolder());
    const Status copied = CopyHeads(source, progress);
    if (copied.ok()) {
      MutexLock lock(mutex_);
      held_.push_back(copy_);
      return OkStatus();
    }
    copy_ = {};
    if (copied.code() != StatusCode::kUnavailable) return copied;
    Fail(source, copied);
  }
  return Unavailable("no source has the weights");
}

Status WeightExchange::TakeFolder() {
  for (int i = 1; !lock_; ++i) {
    const std::string folder = i == 1 ? copies_ : fmt::format("{}-{}", copies_, i);
    auto lock = FolderLock::Take(folder);
    if (lock.ok()) {
      lock_ = std::move(*lock);
      copy_folder_ = (fs::path(folder) / kCopyName).string();
    } else if (lock.status().code() != StatusCode::kFailedPrecondition || i == kCopiesMax) {
      return FailedPrecondition(fmt::format(
          "{}; weights from other workers are stored there: give a model folder that is writable",
          lock.status().message()));
    }
  }
  std::error_code error;
  fs::remove_all(copy_folder_, error);  // from a previous run, or from a source that failed a check
  if (!error) fs::create_directory(copy_folder_, error);
  if (error) return FailedPrecondition(fmt::format("{}: {}", copy_folder_, error.message()));
  return OkStatus();
}

// kUnavailable: the source failed, or its files are not a model or not the model that its list
// names.
Status WeightExchange::CopyHeads(Source& source, const Progress& progress) {
  MR_ASSIGN_OR_RETURN(copy_.store, model::WeightStore::NewCopy(copy_folder_, source.list.files));
  copy_.layout = source.list.layout;
  const auto pull = [&](const std::vector<WeightRange>& ranges) {
    std::vector<Part> parts;
    for (const WeightRange& range : ranges) {
      for (const WeightRange& missing : copy_.store->Missing(range)) {
        for (uint64_t at = missing.begin; at < missing.end; at += kWeightPartBytes) {
          parts.push_back({{range.file, at, std::min(at + kWeightPartBytes, missing.end)}});
        }
      }
    }
    return PullInto({&source, 1}, parts, progress);
  };
  MR_RETURN_IF_ERROR(pull(copy_.store->LengthRanges()));
  const auto heads = copy_.store->HeadRanges();
  if (!heads.ok()) return Disable(source, heads.status());
  MR_RETURN_IF_ERROR(pull(*heads));
  MR_ASSIGN_OR_RETURN(const std::string layout, copy_.store->Layout());
  if (layout != copy_.layout) {
    return Disable(source, DataLoss("its weight files do not match its list of files"));
  }
  auto digests = model::WeightDigests::OfHeads(copy_folder_);
  if (!digests.ok()) return Disable(source, digests.status());
  MR_ASSIGN_OR_RETURN(auto bytes,
                      PullDigests(source, digests->chunks() * model::kDigestBytes, progress));
  MR_RETURN_IF_ERROR(digests->Take(std::move(bytes)));
  if (digests->fingerprint() != source.list.fingerprint) {
    return Disable(source,
                   DataLoss("its weights do not match the model fingerprint that it names"));
  }
  MR_ASSIGN_OR_RETURN(const auto ranges, copy_.store->RangesOf(*digests));
  chunks_.clear();
  for (size_t i = 0; i < ranges.size(); ++i) chunks_.push_back({ranges[i], i});
  std::ranges::sort(chunks_, {},
                    [](const Chunk& c) { return std::pair(c.range.file, c.range.begin); });
  copy_.digests = std::make_shared<const model::WeightDigests>(*std::move(digests));
  return OkStatus();
}

Result<std::vector<std::byte>> WeightExchange::PullDigests(Source& source, size_t bytes,
                                                           const Progress& progress) {
  std::vector<std::byte> digests(bytes);
  const auto part = [&](size_t i) {
    return WeightRange{0, i * kWeightPartBytes, std::min((i + 1) * kWeightPartBytes, bytes)};
  };
  PullSteps steps;
  steps.order = [&](size_t i) {
    const WeightRange range = part(i);
    return PullOrder{source.address, Encode(WeightRequest{Ask::kDigests, copy_.layout, range}),
                     range.end - range.begin};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> in) -> Result<bool> {
    if (!status.ok()) return Unavailable(status.message());
    std::ranges::copy(in, digests.begin() + static_cast<ptrdiff_t>(part(i).begin));
    return false;
  };
  steps.wanted = [&] { return progress(0, 0); };
  const size_t parts = (bytes + kWeightPartBytes - 1) / kWeightPartBytes;
  MR_RETURN_IF_ERROR(PullParts(*plane_, parts, steps));
  return digests;
}

// The missing chunks of the ranges, in the order of the ranges. Adjacent chunks are merged up to
// the size limit of a pull.
std::vector<WeightExchange::Part> WeightExchange::PartsOf(
    const std::vector<WeightRange>& ranges) const {
  std::vector<bool> seen(chunks_.size());
  std::vector<Part> parts;
  const auto add = [&](const Chunk& chunk) {
    if (!parts.empty()) {
      Part& last = parts.back();
      if (last.range.file == chunk.range.file && last.range.end == chunk.range.begin &&
          last.chunks.data() + last.chunks.size() == &chunk &&
          chunk.range.end - last.range.begin <= kWeightPartBytes) {
        last.range.end = chunk.range.end;
        last.chunks = {last.chunks.data(), last.chunks.size() + 1};
        return;
      }
    }
    parts.push_back({chunk.range, {&chunk, 1}});
  };
  for (const WeightRange& range : ranges) {
    auto it = std::ranges::partition_point(chunks_, [&](const Chunk& c) {
      return std::pair(c.range.file, c.range.end) <= std::pair(range.file, range.begin);
    });
    for (; it != chunks_.end() && it->range.file == range.file && it->range.begin < range.end;
         ++it) {
      std::vector<bool>::reference known = seen[static_cast<size_t>(it - chunks_.begin())];
      if (!known && !copy_.store->Missing(it->range).empty()) add(*it);
      known = true;
    }
  }
  return parts;
}

bool WeightExchange::MatchesDigests(const Part& part, std::span<const std::byte> bytes) const {
  return std::ranges::all_of(part.chunks, [&](const Chunk& chunk) {
    return copy_.digests->Matches(chunk.number, bytes.subspan(chunk.range.begin - part.range.begin,
                                                              chunk.range.end - chunk.range.begin));
  });
}

Status WeightExchange::CheckSpace(int64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(copy_folder_, error);
  if (error || !std::cmp_less(space.available, bytes)) return OkStatus();
  return ResourceExhausted(fmt::format(
      "{}: the weights need {} and this disk has {} free; free some space, or give a model folder "
      "on another disk",
      copy_folder_, FormatBytes(bytes), FormatBytes(static_cast<int64_t>(space.available))));
}

// If a source lacks a part or serves wrong bytes for it, the part is requested from the next
// source.
Status WeightExchange::PullInto(std::span<Source> sources, const std::vector<Part>& parts,
                                const Progress& progress) {
  int64_t total = 0, done = 0;
  for (const Part& part : parts) total += static_cast<int64_t>(part.range.end - part.range.begin);
  MR_RETURN_IF_ERROR(CheckSpace(total));
  std::vector<size_t> source_of(parts.size(), 0);
  const auto next_source = [&](size_t part) {
    size_t& at = source_of[part];
    while (at < sources.size() && !sources[at].failed.ok()) ++at;
    return at < sources.size();
  };
  const auto name = [&](size_t part) {
    const WeightRange& range = parts[part].range;
    return fmt::format("bytes [{}, {}) of {}", range.begin, range.end,
                       copy_.store->files()[range.file].name);
  };
  if (!parts.empty() && !next_source(0)) return Unavailable("no source has " + name(0));
  PullSteps steps;
  steps.order = [&](size_t i) {
    // If no source is left, ask a failed one: it fails again, and the part with it.
    const Source& source = sources[next_source(i) ? source_of[i] : 0];
    const WeightRange& range = parts[i].range;
    return PullOrder{source.address, Encode(WeightRequest{Ask::kRange, copy_.layout, range}),
                     static_cast<size_t>(range.end - range.begin)};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> bytes) -> Result<bool> {
    if (status.ok() && MatchesDigests(parts[i], bytes)) {
      MR_RETURN_IF_ERROR(copy_.store->Write(parts[i].range, bytes));
      done += std::ssize(bytes);
      {
        MutexLock lock(mutex_);
        counters_.pulled_bytes += bytes.size();
      }
      if (!progress(done, total)) return Cancelled("the weights are no longer wanted");
      return false;
    }
    if (source_of[i] < sources.size()) {
      Source& source = sources[source_of[i]];
      if (status.ok()) {
        (void)Disable(source, DataLoss(name(i) + " do not match the model's digests")).ok();
      } else if (status.code() != StatusCode::kNotFound) {  // it may have other parts
        Fail(source, status);
      }
      ++source_of[i];
    }
    if (next_source(i)) return true;
    return Unavailable("no source has " + name(i));
  };
  steps.wanted = [&] { return progress(0, 0); };
  return PullParts(*plane_, parts.size(), steps);
}

}  // namespace millrace::cluster
