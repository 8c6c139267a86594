#include "experiments/lib/splitwise/splitwise_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "base/log.h"
#include "base/statistics.h"
#include "cost/csv.h"

namespace millrace::experiments::splitwise {
namespace {

using cost::BatchShape;
using cost::CsvHeader;
using cost::CsvTable;
using cost::PiecewiseLinear;
using cost::StepSample;

constexpr int64_t kRowTokensMax = int64_t{1} << 24;
constexpr int64_t kBatchMax = 1 << 16;
constexpr int64_t kRowTensorParallelMax = 1024;
constexpr double kMsMin = 1e-6, kMsMax = 1e9;

// Points (x, median of the values at x).
PiecewiseLinear MedianCurve(std::map<double, std::vector<double>> values) {
  std::vector<PiecewiseLinear::Point> points;
  for (auto& [x, ys] : values) points.push_back({x, Median(std::move(ys))});
  return PiecewiseLinear(std::move(points));
}

}  // namespace

StepSample SplitwiseRow::Prompt() const {
  const auto sequences = static_cast<int32_t>(batch_size);
  return {{.prefill_tokens = batch_size * prompt_size,
           .prefill_tokens_squared = batch_size * prompt_size * prompt_size,
           .prefill_sequences = sequences},
          prompt_s};
}

StepSample SplitwiseRow::Decode() const {
  return {{.decode_sequences = static_cast<int32_t>(batch_size),
           .decode_context = batch_size * (prompt_size + (token_size + 1) / 2)},
          token_s};
}

Result<std::vector<SplitwiseRow>> ParseSplitwiseRows(std::string text, std::string_view file) {
  MR_ASSIGN_OR_RETURN(const CsvTable csv,
                      CsvTable::Parse(std::move(text), file, CsvHeader::kFirstLine));
  MR_ASSIGN_OR_RETURN(const size_t model, csv.Column("model"));
  MR_ASSIGN_OR_RETURN(const size_t hardware, csv.Column("hardware"));
  MR_ASSIGN_OR_RETURN(const size_t tensor_parallel, csv.Column("tensor_parallel"));
  MR_ASSIGN_OR_RETURN(const size_t prompt_size, csv.Column("prompt_size"));
  MR_ASSIGN_OR_RETURN(const size_t batch_size, csv.Column("batch_size"));
  MR_ASSIGN_OR_RETURN(const size_t token_size, csv.Column("token_size"));
  MR_ASSIGN_OR_RETURN(const size_t prompt_time, csv.Column("prompt_time"));
  MR_ASSIGN_OR_RETURN(const size_t token_time, csv.Column("token_time"));
  std::vector<SplitwiseRow> rows(csv.rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    SplitwiseRow& row = rows[i];
    row.model = csv.Cell(i, model);
    row.hardware = csv.Cell(i, hardware);
    MR_ASSIGN_OR_RETURN(const int64_t tp,
                        csv.Integer(i, tensor_parallel, 1, kRowTensorParallelMax));
    row.tensor_parallel = static_cast<int>(tp);
    MR_ASSIGN_OR_RETURN(row.prompt_size, csv.Integer(i, prompt_size, 1, kRowTokensMax));
    MR_ASSIGN_OR_RETURN(row.batch_size, csv.Integer(i, batch_size, 1, kBatchMax));
    MR_ASSIGN_OR_RETURN(row.token_size, csv.Integer(i, token_size, 1, kRowTokensMax));
    MR_ASSIGN_OR_RETURN(const double prompt_ms, csv.Number(i, prompt_time, kMsMin, kMsMax));
    MR_ASSIGN_OR_RETURN(const double token_ms, csv.Number(i, token_time, kMsMin, kMsMax));
    row.prompt_s = prompt_ms * 1e-3;
    row.token_s = token_ms * 1e-3;
    // The tokens of a sample must fit in its integers.
    if (row.batch_size * row.prompt_size > kRowTokensMax) {
      return csv.ErrorAt(i, fmt::format("more than {} tokens in a batch", kRowTokensMax));
    }
  }
  return rows;
}

Result<std::vector<SplitwiseRow>> LoadSplitwiseRows(const std::string& path) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, CsvTable::kBytesMax));
  return ParseSplitwiseRows(std::move(text), path);
}

Result<TableCost> TableCost::Create(std::span<const SplitwiseRow> rows, TokenAxis axis) {
  if (rows.empty()) return InvalidArgument("a table of measured rows needs a row");
  const SplitwiseRow& first = rows.front();
  std::map<double, std::vector<double>> prompt, token;
  for (const SplitwiseRow& row : rows) {
    if (row.model != first.model || row.hardware != first.hardware ||
        row.tensor_parallel != first.tensor_parallel) {
      return InvalidArgument(fmt::format("one table of measured rows has {} on {} and {} on {}",
                                         Printable(first.model), Printable(first.hardware),
                                         Printable(row.model), Printable(row.hardware)));
    }
    const auto tokens = static_cast<double>(row.batch_size * row.prompt_size);
    prompt[tokens].push_back(row.prompt_s);
    const auto sequences = static_cast<double>(row.batch_size);
    token[axis == TokenAxis::kBatchTokens ? tokens : sequences].push_back(row.token_s);
  }
  return TableCost(MedianCurve(std::move(prompt)), MedianCurve(std::move(token)));
}

double TableCost::Seconds(const BatchShape& batch) const {
  if (batch.empty()) return 0;
  if (batch.prefill_sequences == 0) return std::max(0.0, TokenSeconds(batch.decode_sequences));
  const double prompt = std::max(0.0, PromptSeconds(static_cast<double>(batch.tokens())));
  return batch.decode_sequences == 0 ? prompt : prompt * kMixedFactor;
}

}  // namespace millrace::experiments::splitwise
