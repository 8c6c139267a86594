// Prompts: the tokens of simulated prompts. What a token says does not matter, only which prompts
// begin with the same tokens: the prefix cache of the production scheduler finds those.
//
// Owned by a simulator. One thread.
#pragma once

#include <memory>
#include <vector>

#include "core/ids.h"
#include "sim/load/workload.h"

namespace millrace::sim {

class Prompts {
 public:
  // `cached`: some scheduler has a prefix cache. Otherwise prompts of equal length are one object.
  explicit Prompts(bool cached) : cached_(cached) {}

  // The prompt of a request, the same in every call. Where prefix ids are equal, the tokens are
  // equal. The other tokens are the request's own.
  std::shared_ptr<const std::vector<TokenId>> Of(const SimRequest& request, RequestId id);

 private:
  std::shared_ptr<const std::vector<TokenId>> Blank(int tokens);

  const bool cached_;
  std::vector<std::shared_ptr<const std::vector<TokenId>>> blanks_;  // by length
};

}  // namespace millrace::sim
