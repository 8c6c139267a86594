// PipelineRequests: the requests of one pipeline, and how many tokens it must still compute before
// each of them gets its first token there.
//
// Owned by the controller, one per pipeline. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cluster/control/routing/dispatch.h"
#include "core/ids.h"

namespace millrace::cluster {

class PipelineRequests {
 public:
  // `prefill_tokens`: to compute before its first token. REQUIRES: it is not here.
  void Add(RequestId id, int64_t prefill_tokens);
  // Its first token was computed. REQUIRES: it is here.
  void PrefillEnded(RequestId id);
  // Ignores unknown ids.
  void Remove(RequestId id);

  bool contains(RequestId id) const { return prefill_tokens_.contains(id); }
  size_t size() const { return prefill_tokens_.size(); }
  std::vector<RequestId> Ids() const;  // ascending
  // Of all requests without a first token.
  int64_t prefill_tokens_ahead() const { return ahead_; }
  // For the dispatcher, if the pipeline computes that many prompt tokens per second.
  DispatchLoad Load(double prefill_tokens_per_s) const;

 private:
  std::map<RequestId, int64_t> prefill_tokens_;  // 0 after the first token
  int64_t ahead_ = 0;                            // their sum
};

}  // namespace millrace::cluster
