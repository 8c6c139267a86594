// Streams of an earlier life of the server: written again for the clients that come back.
#include <set>
#include <utility>

#include "base/log.h"
#include "serve/generation.h"
#include "serve/service_impl.h"
#include "serve/stream_record.h"

namespace millrace::serve {

// A stream goes on when a client may come back for it: it is still served under that name, to that
// key, and no later one took its place. Everything else had one client, whose connection is gone.
void Service::Impl::RestoreStreams(const std::shared_ptr<Backend>& backend,
                                   engine::EarlierRequests& requests) {
  int going_on = 0, ended = 0, dropped = 0;
  std::vector<engine::EarlierRequest> all = requests.Take();
  std::set<std::pair<std::string, std::string>> names;  // owner, response
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    engine::EarlierRequest& earlier = *it;
    const RequestId id = earlier.id;
    const bool finished = earlier.finished;
    std::optional<GenerationSpec> spec;
    if (keeper_) spec = DecodeStreamRecord(earlier);
    bool restored = false;
    if (spec && names.emplace(spec->owner, spec->head.id).second &&
        options_.api_keys.Knows(spec->owner) && ServedName(spec->head.model)) {
      auto reply = keeper_->Keep(spec->owner, spec->head.id, nullptr);
      restored =
          reply != nullptr && Generation::Restore(backend, *std::move(spec), std::move(reply),
                                                  std::move(earlier), requests);
    }
    if (!restored && !finished) requests.Drop(id);
    int& count = !restored ? dropped : finished ? ended : going_on;
    count += restored || !finished;
  }
  if (going_on + ended + dropped == 0) return;
  MR_LOG(info, "of an earlier life {} streams go on, {} that ended are kept, {} requests end",
         going_on, ended, dropped);
}

}  // namespace millrace::serve
