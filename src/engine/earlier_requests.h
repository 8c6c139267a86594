// EarlierRequests: what a generator still knows of requests that ran in an earlier life of the
// server, for a front end to go on with. A controller with a journal has them; an engine has none.
// Lives as long as the generator; any thread, each request by one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/output.h"
#include "core/sampling_params.h"
#include "engine/generator.h"

namespace millrace::engine {

struct EarlierRequest {
  RequestId id;
  std::string external_id;
  std::string front_end;  // EngineRequest::front_end
  std::vector<TokenId> prompt;
  SamplingParams params;  // with the seed that was drawn
  int priority = 0;
  std::string cache_salt;
  std::optional<RequestId> joins;  // EngineRequest::joins
  Time arrived;
  // As it was told: in that order, though not in those pieces, and without times. Clients may have
  // seen less of it.
  std::vector<RequestOutput> told;
  // Of each of `told`: its place among the news of all requests that join the same one.
  std::vector<uint64_t> told_order;
  bool finished = false;  // nothing is left to compute
};

class EarlierRequests {
 public:
  virtual ~EarlierRequests() = default;

  // All of them, by id; empty from the second call on. Of each that has not finished Resume or Drop
  // is due.
  virtual std::vector<EarlierRequest> Take() = 0;
  // Goes on behind what was told. An error: it cannot, and has ended.
  virtual Status Resume(RequestId request, OutputSink sink) = 0;
  // Nobody wants the rest.
  virtual void Drop(RequestId request) = 0;
};

}  // namespace millrace::engine
