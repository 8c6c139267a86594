// Vidur's published tables (MLSys'24): times of a layer's operators against tokens in the batch and
// tensor-parallel degree, and of collectives against bytes. Attention is not among the operators.
// Pure data and parsers; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::experiments::vidur {

// One measured batch: the median time of every operator, in the file's names ("mlp_up_proj").
struct VidurOperatorRow {
  int64_t num_tokens = 0;
  int tensor_parallel = 1;
  // The whole model's shape, as the file states it.
  int heads = 0, kv_heads = 0, hidden = 0, intermediate = 0, vocab = 0;
  bool gated_mlp = false;
  std::map<std::string, double> median_s;
};

struct VidurCollectiveRow {
  int64_t bytes = 0;
  int num_workers = 0;
  int devices_per_node = 0;
  double median_s = 0;
};

// `file` names the text in errors. Operators are the columns "time_stats.NAME.median".
Result<std::vector<VidurOperatorRow>> ParseVidurOperators(std::string text, std::string_view file);
Result<std::vector<VidurOperatorRow>> LoadVidurOperators(const std::string& path);

// `collective` is "all_reduce" or "send_recv", the name of the column.
Result<std::vector<VidurCollectiveRow>> ParseVidurCollectives(std::string text,
                                                              std::string_view collective,
                                                              std::string_view file);
Result<std::vector<VidurCollectiveRow>> LoadVidurCollectives(const std::string& path,
                                                             std::string_view collective);

}  // namespace millrace::experiments::vidur
