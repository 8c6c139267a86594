// Streams of an earlier life of the server: written again for the clients that come back.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/generation.h"
#include "serve/service_impl.h"
#include "serve/stream_record.h"

namespace millrace::serve {

namespace {

using StreamName = std::pair<std::string, std::string>;  // owner, response

// The requests of one stream, by prompt.
struct RecoveredStream {
  std::optional<GenerationSpec> spec;  // of all prompts that are there
  std::vector<engine::RecoveredRequest> requests;
  int prompts = 0;
  bool in_order = true;

  bool whole() const { return spec && in_order && std::ssize(requests) == prompts; }
  bool finished() const {
    return std::ranges::all_of(requests, &engine::RecoveredRequest::finished);
  }
  void Take(StreamPart part, engine::RecoveredRequest request) {
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

// In the order of their ids; what is part of no stream makes one of its own, without a spec.
std::vector<RecoveredStream> Streams(std::vector<engine::RecoveredRequest> requests) {
  std::vector<RecoveredStream> streams;
  std::map<RequestId, size_t> begun;
  for (engine::RecoveredRequest& request : requests) {
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

// A stream goes on when a client may come back for it: it is still served under that name, to that
// key, and no later one took its place. Everything else had one client, whose connection is gone.
void Service::Impl::RestoreStreams(const std::shared_ptr<ModelContext>& model_context,
                                   engine::RecoveredRequests& requests) {
  int going_on = 0, ended = 0, dropped = 0;
  std::vector<RecoveredStream> streams = Streams(requests.Take());
  std::set<StreamName> names;
  for (auto it = streams.rbegin(); it != streams.rend(); ++it) {
    RecoveredStream& stream = *it;
    const bool finished = stream.finished();
    std::vector<RequestId> unfinished;
    for (const engine::RecoveredRequest& request : stream.requests) {
      if (!request.finished) unfinished.push_back(request.id);
    }
    bool restored = false;
    const auto& spec = stream.spec;
    if (keeper_ && spec && names.emplace(spec->owner, spec->head.id).second && stream.whole() &&
        options_.api_keys.Knows(spec->owner) && ServedName(spec->head.model)) {
      auto reply = keeper_->Keep(spec->owner, spec->head.id, nullptr);
      restored = reply != nullptr &&
                 Generation::Restore(model_context, *std::move(stream.spec), std::move(reply),
                                     std::move(stream.requests), requests);
    }
    if (!restored) {
      for (const RequestId id : unfinished) requests.Drop(id);
    }
    int& count = !restored ? dropped : finished ? ended : going_on;
    count += restored || !finished;
  }
  if (going_on + ended + dropped == 0) return;
  MR_LOG(info, "of an earlier life {} streams go on, {} that ended are kept, {} requests end",
         going_on, ended, dropped);
}

}  // namespace millrace::serve
