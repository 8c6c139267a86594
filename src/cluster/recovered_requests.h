// RecoveredRequests: requests of the server's previous run that a generator can resume, for a front
// end. A controller with a journal has them; one without it has none. Lives as long as the
// generator; any thread, each request by one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/generator.h"
#include "core/ids.h"
#include "core/output.h"
#include "core/sampling_params.h"

namespace millrace::cluster {

struct RecoveredRequest {
  RequestId id;
  std::string external_id;
  std::string front_end;  // GenerationRequest::front_end
  std::vector<TokenId> prompt;
  SamplingParams params;  // with the seed that was drawn
  int priority = 0;
  std::string cache_salt;
  std::string client;
  std::optional<RequestId> joins;  // GenerationRequest::joins
  Time arrived;
  // The delivered output: in this order, but in other pieces and without times. Clients may have
  // received less of it.
  std::vector<RequestOutput> delivered;
  // For each of `delivered`: its position in the output of all requests that join the same one.
  std::vector<uint64_t> delivered_order;
  bool finished = false;  // nothing remains to be computed
};

class RecoveredRequests {
 public:
  virtual ~RecoveredRequests() = default;

  // All of them, by id; empty from the second call on. Call Resume or Drop for each that has not
  // finished.
  virtual std::vector<RecoveredRequest> Take() = 0;
  // Continues after the delivered output. An error: it cannot continue, and has ended.
  virtual Status Resume(RequestId request, OutputSink sink) = 0;
  // The rest is not needed.
  virtual void Drop(RequestId request) = 0;
};

}  // namespace millrace::cluster
