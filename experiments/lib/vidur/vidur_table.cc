#include "experiments/lib/vidur/vidur_table.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "cost/csv.h"

namespace millrace::experiments::vidur {
namespace {

using cost::CsvHeader;
using cost::CsvTable;

constexpr int64_t kVidurTokensMax = int64_t{1} << 24;
constexpr int64_t kWidthMax = 1 << 24;
constexpr int64_t kWorkersMax = 1 << 16;
constexpr int64_t kBytesMax = int64_t{1} << 40;
constexpr double kVidurMsMax = 1e9;
constexpr std::string_view kPrefix = "time_stats.", kSuffix = ".median";

// Operator name and the column of its median.
using Operators = std::vector<std::pair<std::string, size_t>>;

Operators FindOperators(const CsvTable& csv) {
  Operators operators;
  for (size_t column = 0; column < csv.columns(); ++column) {
    const std::string_view name = csv.HeaderCell(column);
    if (name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
        name.ends_with(kSuffix)) {
      operators.emplace_back(
          name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()), column);
    }
  }
  return operators;
}

Status ReadInt(const CsvTable& csv, size_t row, size_t column, int64_t lo, int64_t hi, int& out) {
  MR_ASSIGN_OR_RETURN(const int64_t value, csv.Integer(row, column, lo, hi));
  out = static_cast<int>(value);
  return {};
}

}  // namespace

Result<std::vector<VidurOperatorRow>> ParseVidurOperators(std::string text, std::string_view file) {
  MR_ASSIGN_OR_RETURN(const CsvTable csv,
                      CsvTable::Parse(std::move(text), file, CsvHeader::kFirstLine));
  const Operators operators = FindOperators(csv);
  if (operators.empty()) return csv.ErrorAt(0, "no column time_stats.NAME.median");
  MR_ASSIGN_OR_RETURN(const size_t num_tokens, csv.Column("num_tokens"));
  MR_ASSIGN_OR_RETURN(const size_t tensor_parallel, csv.Column("num_tensor_parallel_workers"));
  MR_ASSIGN_OR_RETURN(const size_t heads, csv.Column("n_head"));
  MR_ASSIGN_OR_RETURN(const size_t kv_heads, csv.Column("n_kv_head"));
  MR_ASSIGN_OR_RETURN(const size_t hidden, csv.Column("n_embd"));
  MR_ASSIGN_OR_RETURN(const size_t intermediate, csv.Column("n_expanded_embd"));
  MR_ASSIGN_OR_RETURN(const size_t vocab, csv.Column("vocab_size"));
  MR_ASSIGN_OR_RETURN(const size_t gated, csv.Column("use_gated_mlp"));
  std::vector<VidurOperatorRow> rows(csv.rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    VidurOperatorRow& row = rows[i];
    MR_ASSIGN_OR_RETURN(row.num_tokens, csv.Integer(i, num_tokens, 1, kVidurTokensMax));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, tensor_parallel, 1, kWorkersMax, row.tensor_parallel));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, heads, 1, kWidthMax, row.heads));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, kv_heads, 1, kWidthMax, row.kv_heads));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, hidden, 1, kWidthMax, row.hidden));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, intermediate, 1, kWidthMax, row.intermediate));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, vocab, 1, kWidthMax, row.vocab));
    const std::string_view is_gated = csv.Cell(i, gated);
    if (is_gated != "True" && is_gated != "False") {
      return csv.ErrorAt(i, "\"use_gated_mlp\" must be True or False");
    }
    row.gated_mlp = is_gated == "True";
    for (const auto& [name, column] : operators) {
      MR_ASSIGN_OR_RETURN(const double ms, csv.Number(i, column, 0, kVidurMsMax));
      row.median_s[name] = ms * 1e-3;
    }
  }
  return rows;
}

Result<std::vector<VidurOperatorRow>> LoadVidurOperators(const std::string& path) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, CsvTable::kBytesMax));
  return ParseVidurOperators(std::move(text), path);
}

Result<std::vector<VidurCollectiveRow>> ParseVidurCollectives(std::string text,
                                                              std::string_view collective,
                                                              std::string_view file) {
  MR_ASSIGN_OR_RETURN(const CsvTable csv,
                      CsvTable::Parse(std::move(text), file, CsvHeader::kFirstLine));
  MR_ASSIGN_OR_RETURN(const size_t time,
                      csv.Column(fmt::format("{}{}{}", kPrefix, collective, kSuffix)));
  MR_ASSIGN_OR_RETURN(const size_t size, csv.Column("size"));
  MR_ASSIGN_OR_RETURN(const size_t workers, csv.Column("num_workers"));
  MR_ASSIGN_OR_RETURN(const size_t devices, csv.Column("devices_per_node"));
  std::vector<VidurCollectiveRow> rows(csv.rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    MR_ASSIGN_OR_RETURN(rows[i].bytes, csv.Integer(i, size, 1, kBytesMax));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, workers, 1, kWorkersMax, rows[i].num_workers));
    MR_RETURN_IF_ERROR(ReadInt(csv, i, devices, 1, kWorkersMax, rows[i].devices_per_node));
    MR_ASSIGN_OR_RETURN(const double ms, csv.Number(i, time, 0, kVidurMsMax));
    rows[i].median_s = ms * 1e-3;
  }
  return rows;
}

Result<std::vector<VidurCollectiveRow>> LoadVidurCollectives(const std::string& path,
                                                             std::string_view collective) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, CsvTable::kBytesMax));
  return ParseVidurCollectives(std::move(text), collective, path);
}

}  // namespace millrace::experiments::vidur
