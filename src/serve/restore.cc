// Restores the streams of the previous run of the server, for clients that reconnect.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/generation/generation.h"
#include "serve/generation/stream_record.h"
#include "serve/service_impl.h"

namespace millrace::serve {

namespace {

using StreamName = std::pair<std::string, std::string>;  // owner, response

// The requests of one stream, by prompt.
struct RecoveredStream {
  std::optional<GenerationSpec> spec;  // with all prompts found so far
  std::vector<cluster::RecoveredRequest> requests;
  int prompts = 0;
  bool in_order = true;

  bool whole() const { return spec && in_order && std::ssize(requests) == prompts; }
  bool finished() const {
    return std::ranges::all_of(requests, &cluster::RecoveredRequest::finished);
  }
  void Take(StreamPart part, cluster::RecoveredRequest request) {
    in_order = in_order && part.prompt == std::ssize(requests);
    if (!spec) {
      spec = std::move(part.spec);
      prompts = part.prompts;
    } else {
      spec->prompts.push_back(std::move(part.spec.prompts.front()));
    }
    requests.push_back(std::move(request));
  }
};

// Groups requests into streams, in the order of their ids. A request without a valid stream record
// becomes a stream of its own, without a spec.
std::vector<RecoveredStream> Streams(std::vector<cluster::RecoveredRequest> requests) {
  std::vector<RecoveredStream> streams;
  std::map<RequestId, size_t> begun;
  for (cluster::RecoveredRequest& request : requests) {
    std::optional<StreamPart> part = DecodeStreamRecord(request);
    if (!part) {
      streams.emplace_back().requests.push_back(std::move(request));
      continue;
    }
    const auto [place, first] = begun.emplace(request.joins.value_or(request.id), streams.size());
    if (first) streams.emplace_back();
    streams[place->second].Take(*std::move(part), std::move(request));
  }
  return streams;
}

}  // namespace

// Restores a stream if a client may resume it: the server still serves its model name, still has
// its API key, and no newer stream has its name. Drops all other requests, because the connections
// of their clients are gone.
void Service::Impl::RestoreStreams(const std::shared_ptr<ModelContext>& model_context,
                                   cluster::RecoveredRequests& requests) {
  int continued = 0, ended = 0, dropped = 0;
  std::vector<RecoveredStream> streams = Streams(requests.Take());
  std::set<StreamName> names;
  for (auto it = streams.rbegin(); it != streams.rend(); ++it) {
    RecoveredStream& stream = *it;
    const bool finished = stream.finished();
    std::vector<RequestId> unfinished;
    for (const cluster::RecoveredRequest& request : stream.requests) {
      if (!request.finished) unfinished.push_back(request.id);
    }
    bool restored = false;
    const auto& spec = stream.spec;
    if (keeper_ && spec && names.emplace(spec->owner, spec->head.id).second && stream.whole() &&
        api_keys()->Knows(spec->owner) && ServedName(spec->head.model)) {
      auto reply = keeper_->Keep(spec->owner, spec->head.id, nullptr);
      restored = reply != nullptr &&
                 Generation::Restore(model_context, *std::move(stream.spec), std::move(reply),
                                     std::move(stream.requests), requests);
    }
    if (!restored) {
      for (const RequestId id : unfinished) requests.Drop(id);
    }
    int& count = !restored ? dropped : finished ? ended : continued;
    count += restored || !finished;
  }
  if (continued + ended + dropped == 0) return;
  MR_LOG(info, "recovered {} streams, kept {} finished ones, dropped {} requests", continued, ended,
         dropped);
}

}  // namespace millrace::serve
