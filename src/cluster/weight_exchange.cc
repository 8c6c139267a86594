#include "cluster/weight_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cluster/pull_window.h"

namespace millrace::cluster {
namespace {

namespace fs = std::filesystem;
using model::WeightFile;
using model::WeightRange;

constexpr uint32_t kRequestMagic = 0x54574c50;  // "PLWT"
constexpr size_t kDigestDigits = 64;
constexpr int kCopiesMax = 64;  // of processes that share a folder
constexpr std::string_view kCopyName = "weights";

enum class Ask : uint32_t { kList = 1, kRange = 2 };

struct WireRequest {
  uint32_t magic = kRequestMagic;
  Ask ask = Ask::kList;
  char layout[kDigestDigits] = {};
  uint64_t file = 0, begin = 0, end = 0;
};
static_assert(sizeof(WireRequest) == 96);

std::vector<std::byte> Encode(const WireRequest& wire) {
  std::vector<std::byte> bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::vector<std::byte> RangeRequest(const std::string& layout, const WeightRange& range) {
  WireRequest wire{.ask = Ask::kRange, .file = range.file, .begin = range.begin, .end = range.end};
  std::memcpy(wire.layout, layout.data(), std::min(layout.size(), sizeof wire.layout));
  return Encode(wire);
}

struct List {
  std::string fingerprint, layout;
  std::vector<WeightFile> files;
};

std::string ToText(const List& list) {
  Json files = Json::array();
  for (const WeightFile& file : list.files) files.push_back({file.name, file.bytes});
  return DumpJson({{"fingerprint", list.fingerprint}, {"layout", list.layout}, {"files", files}});
}

Result<List> ParseList(std::string_view text) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  const auto is_digest = [&](const char* name) {
    return json.contains(name) && json[name].is_string() &&
           json[name].get_ref<const std::string&>().size() == kDigestDigits;
  };
  if (!json.is_object() || !is_digest("fingerprint") || !is_digest("layout") ||
      !json.contains("files") || !json["files"].is_array()) {
    return InvalidArgument("an answer that is no list of weights");
  }
  List list{json["fingerprint"], json["layout"], {}};
  for (const Json& file : json["files"]) {
    if (!file.is_array() || file.size() != 2 || !file[0].is_string() ||
        !file[1].is_number_unsigned()) {
      return InvalidArgument("a list of weights with something else in it");
    }
    list.files.push_back({file[0], file[1]});
  }
  return list;
}

// In the order of the files, what touches put together, no part larger than a pull may be.
std::vector<WeightRange> PartsOf(const model::WeightStore& copy, std::vector<WeightRange> ranges) {
  std::ranges::sort(ranges, {}, [](const WeightRange& r) { return std::pair(r.file, r.begin); });
  std::vector<WeightRange> merged;
  for (const WeightRange& range : ranges) {
    if (!merged.empty() && merged.back().file == range.file && merged.back().end >= range.begin) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  std::vector<WeightRange> parts;
  for (const WeightRange& range : merged) {
    for (const WeightRange& missing : copy.Missing(range)) {
      for (uint64_t at = missing.begin; at < missing.end; at += kWeightPartBytes) {
        parts.push_back({missing.file, at, std::min(at + kWeightPartBytes, missing.end)});
      }
    }
  }
  return parts;
}

}  // namespace

WeightExchange::~WeightExchange() {
  std::error_code ignored;
  if (lock_) fs::remove_all(fs::path(copy_folder_).parent_path(), ignored);
}

Status WeightExchange::Offer(std::shared_ptr<model::WeightStore> store,
                             const std::string& fingerprint) {
  MR_ASSIGN_OR_RETURN(std::string layout, store->Layout());
  std::lock_guard lock(mutex_);
  held_.push_back({std::move(store), fingerprint, std::move(layout)});
  return OkStatus();
}

std::string WeightExchange::fetched_fingerprint() const {
  return heads_ ? copy_.fingerprint : std::string();
}

WeightCounters WeightExchange::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

// ---- the owner's side

bool WeightExchange::IsRequest(std::span<const std::byte> request) {
  uint32_t magic = 0;
  if (request.size() < sizeof magic) return false;
  std::memcpy(&magic, request.data(), sizeof magic);
  return magic == kRequestMagic;
}

Result<net::PullSource> WeightExchange::Serve(std::span<const std::byte> request) {
  auto served = ServeAny(request);
  std::lock_guard lock(mutex_);
  if (served.ok()) {
    ++counters_.served;
    counters_.served_bytes += std::get<net::PullProducer>(*served).bytes;
  } else {
    ++counters_.refused;
  }
  return served;
}

Result<net::PullSource> WeightExchange::ServeAny(std::span<const std::byte> request) const {
  WireRequest wire;
  if (request.size() != sizeof wire) {
    return InvalidArgument(fmt::format("a request for weights of {} bytes", request.size()));
  }
  std::memcpy(&wire, request.data(), sizeof wire);
  std::vector<Held> held;
  {
    std::lock_guard lock(mutex_);
    held = held_;
  }
  if (wire.magic != kRequestMagic || (wire.ask != Ask::kList && wire.ask != Ask::kRange)) {
    return InvalidArgument("a request for weights that asks for nothing");
  }
  if (held.empty()) return NotFound("no weights are here to copy");
  if (wire.ask == Ask::kList) {
    const auto text = std::make_shared<std::string>(
        ToText({held.front().fingerprint, held.front().layout, held.front().store->files()}));
    if (text->size() > kWeightListBytesMax) return ResourceExhausted("the list of weights is long");
    return net::PullSource(
        net::PullProducer{text->size(), [text](uint64_t offset, std::span<std::byte> out) {
                            std::memcpy(out.data(), text->data() + offset, out.size());
                            return OkStatus();
                          }});
  }
  const std::string layout(wire.layout, sizeof wire.layout);
  const auto found = std::ranges::find(held, layout, &Held::layout);
  if (found == held.end()) return NotFound("no weights laid out like that are here");
  const WeightRange range{wire.file, wire.begin, wire.end};
  MR_RETURN_IF_ERROR(found->store->Check(range));
  if (range.end - range.begin > kWeightPartBytes) {
    return InvalidArgument(fmt::format("{} bytes of weights at once, the limit is {}",
                                       range.end - range.begin, kWeightPartBytes));
  }
  return net::PullSource(
      net::PullProducer{range.end - range.begin,
                        [store = found->store, range](uint64_t offset, std::span<std::byte> out) {
                          const uint64_t begin = range.begin + offset;
                          return store->Read({range.file, begin, begin + out.size()}, out);
                        }});
}

// ---- the reader's side

Result<std::string> WeightExchange::Fetch(const LoadShard& load, const Progress& progress) {
  std::vector<Source> sources;
  for (const WorkerAddress& source : load.sources) {
    if (sources.size() < kWeightSourcesMax) sources.push_back({DataAddress(source), {}});
  }
  const Time start = clock_.Now();
  const uint64_t before = counters().pulled_bytes;
  Status status = FetchLayers(load, sources, progress);
  if (status.ok()) {
    MR_LOG(info, "fetched {} of layers {}-{} from other workers in {:.2f} s",
           FormatBytes(static_cast<int64_t>(counters().pulled_bytes - before)), load.layers.begin,
           load.layers.end - 1, (clock_.Now() - start).seconds());
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
  return Unavailable(fmt::format("no worker gave the weights of layers {}-{} ({})",
                                 load.layers.begin, load.layers.end - 1, why));
}

Status WeightExchange::FetchLayers(const LoadShard& load, std::vector<Source>& sources,
                                   const Progress& progress) {
  MR_RETURN_IF_ERROR(AskForLists(sources, progress));
  if (!heads_) MR_RETURN_IF_ERROR(FetchHeads(sources, progress));
  MR_ASSIGN_OR_RETURN(const auto ranges, copy_.store->RangesFor(load.layers, load.rank));
  return FetchRanges(sources, ranges, progress);
}

void WeightExchange::Fail(Source& source, const Status& why) {
  if (!source.failed.ok()) return;
  source.failed = why;
  MR_LOG(warn, "worker {} gives no weights: {}", Printable(source.address.endpoint),
         Printable(why.message()));
  std::lock_guard lock(mutex_);
  ++counters_.sources_failed;
}

// Of those whose files are laid out alike; the first says how, unless a copy is here already.
Status WeightExchange::AskForLists(std::vector<Source>& sources, const Progress& progress) {
  std::map<size_t, std::vector<std::byte>> lists;
  PullSteps steps;
  steps.order = [&](size_t i) {
    return PullOrder{sources[i].address, Encode({}), kWeightListBytesMax, true};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> bytes) -> Result<bool> {
    if (status.ok()) {
      lists[i].assign(bytes.begin(), bytes.end());
    } else {
      Fail(sources[i], status);
    }
    return false;
  };
  steps.wanted = [&] { return progress(0, 0); };
  MR_RETURN_IF_ERROR(PullParts(*plane_, sources.size(), steps));
  for (const auto& [i, text] : lists) {
    const Status taken = TakeList(text);
    if (taken.code() == StatusCode::kInvalidArgument) {
      Fail(sources[i], taken);
    } else {
      MR_RETURN_IF_ERROR(taken);
    }
  }
  return copy_.store ? OkStatus() : Unavailable("no source has weights");
}

Status WeightExchange::TakeList(std::span<const std::byte> text) {
  MR_ASSIGN_OR_RETURN(List list,
                      ParseList({reinterpret_cast<const char*>(text.data()), text.size()}));
  std::string mine = copy_.fingerprint;
  {
    std::lock_guard lock(mutex_);
    if (!held_.empty()) mine = held_.front().fingerprint;
  }
  if (!mine.empty() && list.fingerprint != mine) return InvalidArgument("it has another model");
  if (!copy_.store) {
    MR_RETURN_IF_ERROR(MakeCopy(std::move(list.files)));
    copy_.fingerprint = list.fingerprint;
    copy_.layout = list.layout;
  } else if (list.layout != copy_.layout) {
    return InvalidArgument("its files are cut in another way");
  }
  return OkStatus();
}

Status WeightExchange::MakeCopy(std::vector<WeightFile> files) {
  for (int i = 1; !lock_; ++i) {
    const std::string folder = i == 1 ? copies_ : fmt::format("{}-{}", copies_, i);
    auto lock = FolderLock::Take(folder);
    if (lock.ok()) {
      lock_ = std::move(*lock);
      copy_folder_ = (fs::path(folder) / kCopyName).string();
    } else if (lock.status().code() != StatusCode::kFailedPrecondition || i == kCopiesMax) {
      return FailedPrecondition(fmt::format(
          "{}; weights from other workers are kept there: name a model folder that can be written",
          lock.status().message()));
    }
  }
  std::error_code error;
  fs::remove_all(copy_folder_, error);  // of an earlier life
  if (!error) fs::create_directory(copy_folder_, error);
  if (error) return FailedPrecondition(fmt::format("{}: {}", copy_folder_, error.message()));
  MR_ASSIGN_OR_RETURN(copy_.store, model::WeightStore::NewCopy(copy_folder_, std::move(files)));
  return OkStatus();
}

Status WeightExchange::FetchHeads(std::vector<Source>& sources, const Progress& progress) {
  const auto fetch = [&]() -> Status {
    MR_RETURN_IF_ERROR(FetchRanges(sources, copy_.store->LengthRanges(), progress));
    MR_ASSIGN_OR_RETURN(const auto heads, copy_.store->HeadRanges());
    MR_RETURN_IF_ERROR(FetchRanges(sources, heads, progress));
    MR_ASSIGN_OR_RETURN(const std::string layout, copy_.store->Layout());
    if (layout != copy_.layout) return DataLoss("weight files that are not what their list said");
    return OkStatus();
  };
  const Status status = fetch();
  if (!status.ok()) {
    copy_ = {};
    return status;
  }
  heads_ = true;
  std::lock_guard lock(mutex_);
  held_.push_back(copy_);
  return OkStatus();
}

Status WeightExchange::FetchRanges(std::vector<Source>& sources, std::vector<WeightRange> ranges,
                                   const Progress& progress) {
  const std::vector<WeightRange> parts = PartsOf(*copy_.store, std::move(ranges));
  int64_t total = 0, done = 0;
  for (const WeightRange& part : parts) total += static_cast<int64_t>(part.end - part.begin);
  std::error_code error;
  const fs::space_info space = fs::space(copy_folder_, error);
  if (!error && std::cmp_less(space.available, total)) {
    return ResourceExhausted(fmt::format(
        "{}: {} of weights are to be fetched and {} are free on this disk; free some, or name a "
        "model folder on another",
        copy_folder_, FormatBytes(total), FormatBytes(static_cast<int64_t>(space.available))));
  }
  std::vector<size_t> source_of(parts.size(), 0);
  const auto next_source = [&](size_t part) {
    size_t& at = source_of[part];
    while (at < sources.size() && !sources[at].failed.ok()) ++at;
    return at < sources.size();
  };
  const auto nobody = [&](size_t part) {
    return Unavailable(fmt::format("nobody has bytes [{}, {}) of {}", parts[part].begin,
                                   parts[part].end, copy_.store->files()[parts[part].file].name));
  };
  if (!parts.empty() && !next_source(0)) return nobody(0);
  PullSteps steps;
  steps.order = [&](size_t i) {
    // Where none is left, one that has failed will fail again, and the part with it.
    const Source& source = sources[next_source(i) ? source_of[i] : 0];
    return PullOrder{source.address, RangeRequest(copy_.layout, parts[i]),
                     static_cast<size_t>(parts[i].end - parts[i].begin)};
  };
  steps.arrived = [&](size_t i, const Status& status,
                      std::span<const std::byte> bytes) -> Result<bool> {
    if (status.ok()) {
      MR_RETURN_IF_ERROR(copy_.store->Write(parts[i], bytes));
      done += std::ssize(bytes);
      {
        std::lock_guard lock(mutex_);
        counters_.pulled_bytes += bytes.size();
      }
      if (!progress(done, total)) return Cancelled("not wanted any more");
      return false;
    }
    // One that lacks a part may have others.
    if (source_of[i] < sources.size()) {
      if (status.code() != StatusCode::kNotFound) Fail(sources[source_of[i]], status);
      ++source_of[i];
    }
    if (next_source(i)) return true;
    return nobody(i);
  };
  steps.wanted = [&] { return progress(0, 0); };
  return PullParts(*plane_, parts.size(), steps);
}

}  // namespace millrace::cluster
