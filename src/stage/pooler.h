// Pooler: makes one vector of a sequence's prompt from the hidden states of its tokens. States are
// added in the order of the tokens, each once: a replay adds nothing again. The bits therefore do
// not depend on how the prompt was cut into steps, or on how often it was computed.
//
// Owned by the stage's state of the sequence; one thread.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "core/sampling_params.h"

namespace millrace::stage {

class Pooler {
 public:
  explicit Pooler(Pooling pooling) : pooling_(pooling) {}

  // Whether the state of the token at `position`, of a prompt of so many tokens, is to be added.
  bool Wants(int position, int prompt_tokens) const {
    return pooling_ == Pooling::kMean ? position >= added_ : position + 1 == prompt_tokens;
  }
  void Add(int position, std::span<const float> state);
  // kInternal: a state is missing, or is not a number.
  Result<std::vector<float>> Vector(int prompt_tokens) const;

 private:
  const Pooling pooling_;
  int added_ = 0;            // states
  bool gap_ = false;         // a mean lacks one before the last
  std::vector<double> sum_;  // of a single state it has the exact bits
};

}  // namespace millrace::stage
