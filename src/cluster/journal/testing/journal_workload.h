// JournalWorkload: generates the records that a controller appends, from a seed: requests are
// accepted, and their sequences grow and end in any order. Owned by the test; one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cluster/journal/journal_record.h"

namespace millrace::cluster::testing {

class JournalWorkload {
 public:
  explicit JournalWorkload(uint64_t seed) : rng_(seed) {}

  JournalRecord Next() {
    if (live_.empty() || rng_.Between(0, 5) == 0) return Accept();
    auto it = live_.begin();
    std::advance(it, rng_.Between(0, static_cast<int64_t>(live_.size()) - 1));
    auto& positions = it->second;  // by sequence, without those that have ended
    auto one = positions.begin();
    std::advance(one, rng_.Between(0, static_cast<int64_t>(positions.size()) - 1));
    if (rng_.Between(0, 4) > 0) {
      JournalTokens tokens{it->first, one->first, one->second, {}};
      for (int64_t i = rng_.Between(1, 4); i > 0; --i) {
        tokens.tokens.push_back(static_cast<TokenId>(rng_.Between(0, 100'000)));
      }
      one->second += static_cast<uint32_t>(tokens.tokens.size());
      if (with_logprobs_.contains(it->first)) {
        for (const TokenId token : tokens.tokens) {
          tokens.logprobs.positions.push_back({{token, -1, 2}, {{token + 1, -0.5f, 1}}});
        }
        tokens.prompt_logprobs = tokens.logprobs;
      }
      if (tokens.position % 3 == 0) tokens.fingerprint = tokens.position % 2 ? "fp_1" : "fp_0";
      tokens.cached_prompt_tokens = static_cast<int>(rng_.Between(0, 2));
      if (rng_.Between(0, 9) == 0) {
        tokens.finish_reason = "length";
        End(it, one);
      }
      return tokens;
    }
    JournalFinished end{it->first, one->first, rng_.Between(0, 1) ? "stop" : "abort"};
    End(it, one);
    return end;
  }

 private:
  using Positions = std::map<int, uint32_t>;
  using Live = std::map<RequestId, Positions>;

  void End(Live::iterator request, Positions::iterator continuation) {
    request->second.erase(continuation);
    if (request->second.empty()) live_.erase(request);
  }
  JournalRecord Accept() {
    JournalAccept accept{.request = RequestId(next_++)};
    accept.external_id = "x" + std::to_string(rng_.Between(0, 1000));
    for (int64_t i = rng_.Between(0, 8); i > 0; --i) {
      accept.prompt.push_back(static_cast<TokenId>(rng_.Between(0, 100'000)));
    }
    accept.params.n = static_cast<int>(rng_.Between(1, 3));
    accept.params.temperature = rng_.Uniform();
    if (rng_.Between(0, 1)) accept.params.seed = rng_.Next();
    if (rng_.Between(0, 3) == 0) accept.params.stop = {"END"};
    if (rng_.Between(0, 3) == 0) with_logprobs_.insert(accept.request);
    if (rng_.Between(0, 2) > 0) {
      stream_ = accept.request;
    } else if (live_.contains(stream_)) {
      accept.joins = stream_;
    }
    for (int i = 0; i < accept.params.n; ++i) live_[accept.request][i] = 0;
    return accept;
  }

  Rng rng_;
  uint64_t next_ = 1;
  RequestId stream_;  // the last request that did not join a stream
  std::set<RequestId> with_logprobs_;
  Live live_;
};

}  // namespace millrace::cluster::testing
