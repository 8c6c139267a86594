// The comma-separated profiles: layer tables, splitwise-sim's rows, Vidur's operators and
// collectives. The first byte selects the format.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "cost/layer_table_cost.h"
#include "experiments/lib/splitwise/splitwise_table.h"
#include "experiments/lib/vidur/vidur_table.h"

namespace {

using namespace millrace::cost;
using namespace millrace::experiments::splitwise;
using namespace millrace::experiments::vidur;

void FuzzLayers(const std::string& text) {
  const auto table = LayerTable::Parse(text, "prompt", text, "decode");
  if (!table.ok()) return;
  for (const double tokens : {0.0, 1.0, 2.0, 100.0, 1e6}) {
    const double seconds = table->PromptSeconds(tokens);
    MR_CHECK(std::isfinite(seconds) && seconds >= 0) << seconds;
  }
}

void FuzzSplitwise(const std::string& text) {
  const auto rows = ParseSplitwiseRows(text, "rows");
  if (!rows.ok()) return;
  const auto cost = TableCost::Create(*rows, TableCost::TokenAxis::kSequences);
  if (!cost.ok()) return;
  for (const SplitwiseRow& row : *rows) {
    const double seconds = cost->Seconds(row.Prompt().batch);
    MR_CHECK(std::isfinite(seconds) && seconds >= 0) << seconds;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: FuzzLayers(text); break;
    case 1: FuzzSplitwise(text); break;
    case 2: (void)ParseVidurOperators(text, "mlp"); break;
    default: (void)ParseVidurCollectives(text, "all_reduce", "network"); break;
  }
  return 0;
}
