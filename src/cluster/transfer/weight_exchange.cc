#include "cluster/transfer/weight_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "cluster/transfer/pull_window.h"

namespace millrace::cluster {
namespace {

namespace fs = std::filesystem;
using model::WeightRange;
using Ask = WeightRequest::Ask;

net::PullSource Answer(std::span<const std::byte> bytes, std::shared_ptr<const void> holder) {
  return net::PullProducer{
      bytes.size(), [bytes, holder = std::move(holder)](uint64_t offset, std::span<std::byte> out) {
        std::memcpy(out.data(), bytes.data() + offset, out.size());
        return OkStatus();
      }};
}

}  // namespace

WeightExchange::~WeightExchange() {
  std::error_code ignored;
  if (lock_) fs::remove_all(fs::path(copy_folder_).parent_path(), ignored);
}

Status WeightExchange::Offer(std::shared_ptr<model::WeightStore> store,
                             std::shared_ptr<const model::WeightDigests> digests) {
  MR_ASSIGN_OR_RETURN(std::string layout, store->Layout());
  MutexLock lock(mutex_);
  held_.push_back({std::move(store), std::move(digests), std::move(layout)});
  return OkStatus();
}

std::string WeightExchange::fetched_fingerprint() const {
  return copy_.digests ? copy_.digests->fingerprint() : std::string();
}

WeightCounters WeightExchange::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

// ---- the side that serves

Result<net::PullSource> WeightExchange::Serve(const WeightRequest& request) {
  auto served = ServeAny(request);
  MutexLock lock(mutex_);
  if (served.ok()) {
    ++counters_.served;
    counters_.served_bytes += std::get<net::PullProducer>(*served).bytes;
  } else {
    ++counters_.refused;
  }
  return served;
}

Result<net::PullSource> WeightExchange::ServeAny(const WeightRequest& asked) const {
  std::vector<Held> held;
  {
    MutexLock lock(mutex_);
    held = held_;
  }
  if (held.empty()) return NotFound("this worker has no weights to copy");
  if (asked.ask == Ask::kList) {
    const Held& first = held.front();
    const auto text = std::make_shared<std::string>(
        Encode(WeightList{first.digests->fingerprint(), first.layout, first.store->files()}));
    if (text->size() > kWeightListBytesMax) {
      return ResourceExhausted("the list of weight files is too long");
    }
    return Answer(std::as_bytes(std::span(*text)), text);
  }
  const auto found = std::ranges::find(held, asked.layout, &Held::layout);
  if (found == held.end()) return NotFound("this worker has no weights with this layout");
  const WeightRange& range = asked.range;
  if (asked.ask == Ask::kDigests) {
    const std::span<const std::byte> digests = found->digests->digests();
    if (range.end > digests.size()) {
      return InvalidArgument(fmt::format("bytes [{}, {}) are not within the {} bytes of digests",
                                         range.begin, range.end, digests.size()));
    }
    return Answer(digests.subspan(range.begin, range.end - range.begin), found->digests);
  }
  MR_RETURN_IF_ERROR(found->store->Check(range));
  return net::PullSource(
      net::PullProducer{range.end - range.begin,
                        [store = found->store, range](uint64_t offset, std::span<std::byte> out) {
                          const uint64_t begin = range.begin + offset;
                          return store->Read({range.file, begin, begin + out.size()}, out);
                        }});
}

// ---- the side that fetches

Result<std::string> WeightExchange::Fetch(const LoadShard& load, const Progress& progress,
                                          const model::LoadedWeights& here) {
  std::vector<Source> sources;
  for (const WorkerAddress& source : load.sources) {
    if (sources.size() == kWeightSourcesMax) break;
    const net::PeerAddress address = DataAddress(source);
    const bool disabled = std::ranges::find(disabled_, address) != disabled_.end();
    sources.push_back({address,
                       {},
                       disabled
                           ? DataLoss("source disabled until it restarts: it served wrong bytes")
                           : OkStatus()});
  }
  const Time start = clock_.Now();
  const uint64_t before = counters().pulled_bytes;
  Status status = FetchLayers(load, sources, progress, here);
  if (status.ok()) {
    if (const uint64_t pulled = counters().pulled_bytes - before; pulled > 0) {
      MR_LOG(info, "fetched {} of layers {}-{} from other workers in {:.2f} s",
             FormatBytes(static_cast<int64_t>(pulled)), load.layers.begin, load.layers.end - 1,
             (clock_.Now() - start).seconds());
    }
    return copy_.store->folder();
  }
  if (status.code() != StatusCode::kUnavailable) return status;
  std::string why;
  for (const Source& source : sources) {
    if (source.failed.ok()) continue;
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", source.address.endpoint,
                       source.failed.message());
  }
  if (why.empty()) why = sources.empty() ? "no other worker has weights" : status.message();
  return Unavailable(fmt::format("no worker could serve the weights of layers {}-{} ({})",
                                 load.layers.begin, load.layers.end - 1, why));
}

Status WeightExchange::FetchLayers(const LoadShard& load, std::vector<Source>& sources,
                                   const Progress& progress, const model::LoadedWeights& here) {
  const std::string wanted = Wanted(load);
  if (copy_.digests && copy_.digests->fingerprint() != wanted) {
    return FailedPrecondition(
        "this worker has already copied weights of another model; restart it");
  }
  const auto complete = [&](const std::vector<WeightRange>& ranges) {
    return std::ranges::all_of(
        ranges, [&](const WeightRange& range) { return copy_.store->Check(range).ok(); });
  };
  if (copy_.digests) {  // no source is needed for what was fetched before
    MR_ASSIGN_OR_RETURN(const auto ranges, copy_.store->RangesFor(load.layers, load.rank, here));
    if (complete(ranges)) return OkStatus();
  }
  MR_RETURN_IF_ERROR(AskForLists(sources, wanted, progress));
  if (!copy_.digests) MR_RETURN_IF_ERROR(BeginCopy(sources, progress));
  for (Source& source : sources) {
    if (source.list.layout != copy_.layout) {
      Fail(source, InvalidArgument("its weight files are split differently"));
    }
  }
  MR_ASSIGN_OR_RETURN(const auto ranges, copy_.store->RangesFor(load.layers, load.rank, here));
  MR_RETURN_IF_ERROR(PullInto(sources, PartsOf(ranges), progress));
  // A byte that no chunk covers would be read as zero.
  for (const WeightRange& range : ranges) MR_RETURN_IF_ERROR(copy_.store->Check(range));
  return OkStatus();
}

// The fingerprint that sources must have; empty: the fingerprint of the first source.
std::string WeightExchange::Wanted(const LoadShard& load) const {
  if (!load.model_fingerprint.empty()) return load.model_fingerprint;
  MutexLock lock(mutex_);
  return held_.empty() ? std::string() : held_.front().digests->fingerprint();
}

void WeightExchange::Fail(Source& source, const Status& why) {
  if (!source.failed.ok()) return;
  source.failed = why;
  MR_LOG(warn, "cannot get weights from worker {}: {}", Printable(source.address.endpoint),
         Printable(why.message()));
  MutexLock lock(mutex_);
  ++counters_.sources_failed;
}

Status WeightExchange::Disable(Source& source, const Status& why) {
  if (!source.failed.ok()) return source.failed;
  Fail(source, DataLoss(why.message() + "; source disabled until it restarts"));
  if (disabled_.size() == kDisabledSourcesMax) disabled_.erase(disabled_.begin());
  disabled_.push_back(source.address);
  MutexLock lock(mutex_);
  ++counters_.sources_disabled;
  return Unavailable(why.message());
}

Status WeightExchange::AskForLists(std::vector<Source>& sources, std::string wanted,
                                   const Progress& progress) {
  std::vector<size_t> asked;  // indexes of sources
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].failed.ok()) asked.push_back(i);
  }
  const auto take = [&](Source& source, std::span<const std::byte> bytes) -> Status {
    MR_ASSIGN_OR_RETURN(source.list, DecodeWeightList(bytes));
    return OkStatus();
  };
  PullSteps steps;
  steps.order = [&](size_t i) {
    return PullOrder{sources[asked[i]].address, Encode(WeightRequest{}), kWeightListBytesMax, true};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> bytes) -> Result<bool> {
    Source& source = sources[asked[i]];
    const Status taken = status.ok() ? take(source, bytes) : status;
    if (!taken.ok()) Fail(source, taken);
    return false;
  };
  steps.wanted = [&] { return progress(0, 0); };
  MR_RETURN_IF_ERROR(PullParts(*plane_, asked.size(), steps));
  for (Source& source : sources) {
    if (!source.failed.ok()) continue;
    if (wanted.empty()) wanted = source.list.fingerprint;
    if (source.list.fingerprint != wanted) Fail(source, InvalidArgument("it has another model"));
  }
  return OkStatus();
}

}  // namespace millrace::cluster
