// Named model shapes, with the numbers that their authors published, as config.json objects. For
// `millrace make-model`, benchmarks and tests. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::model {

// Overrides for the numbers of a named shape.
struct ShapeNumbers {
  std::optional<int> layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, positions;
};

std::vector<std::string> ShapeNames();

// kNotFound for an unknown name, listing the known ones. Token ids are those of make-model's own
// tokenizer (make_tokenizer.h), not those of the published model.
Result<Json> ShapeConfig(std::string_view name, const ShapeNumbers& numbers = {});

}  // namespace millrace::model
