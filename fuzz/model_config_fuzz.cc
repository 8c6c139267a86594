// config.json and generation_config.json: an accepted configuration has sizes within the limits, so
// that no derived size is huge.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/architecture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  using namespace millrace::model;
  if (size > kConfigBytesMax) return 0;
  Result<Json> config = ParseConfig({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) return 0;
  auto generation = ParseGenerationConfig(&*config, *config, 1000, "config.json");
  if (generation.ok()) {
    for (TokenId id : generation->eos) MR_CHECK(id >= 0 && id < 1000);
  }
  auto decoder = NewDecoder(*config, "config.json");
  if (!decoder.ok()) return 0;
  const ModelSpec& s = (*decoder)->dims().spec;
  MR_CHECK(s.num_layers >= 1 && s.num_layers <= kLayersMax);
  MR_CHECK(s.num_heads >= 1 && s.num_heads % s.num_kv_heads == 0);
  MR_CHECK(s.head_dim >= 1 && s.head_dim <= kHeadDimMax);
  MR_CHECK(s.max_position >= 1 && s.max_position <= kPositionsMax);
  if (s.num_layers > 8) return 0;  // only to keep executions short
  WeightPlan plan(nullptr);
  (*decoder)->Declare({0, s.num_layers}, plan);
  for (const WeightNeed& need : plan.Needs()) MR_CHECK(need.elements() > 0);
  return 0;
}
