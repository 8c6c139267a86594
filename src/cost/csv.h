// CsvTable: untrusted comma-separated text in the form of the published profiles: no quotes, an
// optional header line, the same number of fields on every line. Errors name file, line and column.
// Immutable after Parse; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::cost {

enum class CsvHeader { kFirstLine, kNone };

class CsvTable {
 public:
  static constexpr size_t kBytesMax = 16 << 20;
  static constexpr size_t kColumnsMax = 256;
  static constexpr size_t kCellsMax = 4'000'000;

  // `file` names the text in errors. Blank lines are skipped; a text without data lines is an
  // error.
  static Result<CsvTable> Parse(std::string text, std::string_view file, CsvHeader header);
  static Result<CsvTable> Load(const std::string& path, CsvHeader header);

  size_t rows() const { return lines_.size(); }
  size_t columns() const { return columns_; }
  // The column with that name in the header.
  Result<size_t> Column(std::string_view name) const;
  // The name of column `column`. REQUIRES: a header, column < columns().
  std::string_view HeaderCell(size_t column) const;

  // REQUIRES, here and below: row < rows(), column < columns().
  std::string_view Cell(size_t row, size_t column) const;
  // A finite number in [lo, hi].
  Result<double> Number(size_t row, size_t column, double lo, double hi) const;
  Result<int64_t> Integer(size_t row, size_t column, int64_t lo, int64_t hi) const;
  // An error about this row: "file:line: what".
  Status ErrorAt(size_t row, std::string_view what) const;

 private:
  using Span = std::pair<uint32_t, uint32_t>;  // [begin, end) in text_
  CsvTable() = default;
  Status AddLine(size_t begin, size_t end, int line, bool header);
  std::string_view Text(Span span) const {
    return std::string_view(text_).substr(span.first, span.second - span.first);
  }
  std::string ColumnName(size_t column) const;

  std::string file_, text_;
  size_t columns_ = 0;
  std::vector<Span> header_;  // empty without a header
  std::vector<Span> cells_;   // [rows, columns]
  std::vector<int> lines_;    // of each row, from 1
};

}  // namespace millrace::cost
