#include "cost/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/file.h"
#include "base/log.h"

namespace millrace::cost {
namespace {

constexpr size_t kShownBytesMax = 40;  // of a wrong cell, shown in an error

std::string_view Trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <typename T>
bool ParseWhole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<CsvTable> CsvTable::Parse(std::string text, std::string_view file, CsvHeader header) {
  CsvTable table;
  table.file_ = Printable(file);
  if (text.size() > kBytesMax) {
    return InvalidArgument(
        fmt::format("{}: {} bytes, the limit is {}", table.file_, text.size(), kBytesMax));
  }
  table.text_ = std::move(text);
  bool want_header = header == CsvHeader::kFirstLine;
  int line = 0;
  for (size_t begin = 0; begin < table.text_.size();) {
    const size_t end = std::min(table.text_.find('\n', begin), table.text_.size());
    ++line;
    if (!Trimmed(std::string_view(table.text_).substr(begin, end - begin)).empty()) {
      MR_RETURN_IF_ERROR(table.AddLine(begin, end, line, want_header));
      want_header = false;
    }
    begin = end + 1;
  }
  if (table.lines_.empty()) return InvalidArgument(table.file_ + ": no data lines");
  return table;
}

Result<CsvTable> CsvTable::Load(const std::string& path, CsvHeader header) {
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kBytesMax));
  return Parse(std::move(text), path, header);
}

Status CsvTable::AddLine(size_t begin, size_t end, int line, bool header) {
  std::vector<Span>& out = header ? header_ : cells_;
  const size_t before = out.size();
  for (size_t cell = begin; cell <= end;) {
    const size_t comma = std::min(std::string_view(text_).substr(0, end).find(',', cell), end);
    const std::string_view trimmed = Trimmed(std::string_view(text_).substr(cell, comma - cell));
    const auto first = static_cast<uint32_t>(trimmed.data() - text_.data());
    out.emplace_back(first, first + static_cast<uint32_t>(trimmed.size()));
    if (out.size() - before > kColumnsMax || out.size() > kCellsMax) {
      return InvalidArgument(fmt::format("{}:{}: more than {} fields in a line or {} in the file",
                                         file_, line, kColumnsMax, kCellsMax));
    }
    cell = comma + 1;
  }
  const size_t count = out.size() - before;
  if (columns_ == 0) columns_ = count;
  if (count != columns_) {
    return InvalidArgument(
        fmt::format("{}:{}: {} field(s), the first line has {}", file_, line, count, columns_));
  }
  if (!header) lines_.push_back(line);
  return {};
}

std::string_view CsvTable::HeaderCell(size_t column) const {
  MR_CHECK(column < header_.size()) << column;
  return Text(header_[column]);
}

Result<size_t> CsvTable::Column(std::string_view name) const {
  for (size_t i = 0; i < header_.size(); ++i) {
    if (Text(header_[i]) == name) return i;
  }
  return InvalidArgument(fmt::format("{}:1: no column \"{}\"", file_, name));
}

std::string_view CsvTable::Cell(size_t row, size_t column) const {
  MR_CHECK(row < rows() && column < columns_) << row << ", " << column;
  return Text(cells_[row * columns_ + column]);
}

std::string CsvTable::ColumnName(size_t column) const {
  if (header_.empty()) return fmt::format("field {}", column + 1);
  return fmt::format("\"{}\"", Printable(Text(header_[column]), kShownBytesMax));
}

Result<double> CsvTable::Number(size_t row, size_t column, double lo, double hi) const {
  double value = 0;
  if (!ParseWhole(Cell(row, column), value) || !(value >= lo && value <= hi)) {
    return ErrorAt(
        row, fmt::format("{} must be a number in [{:g}, {:g}], got \"{}\"", ColumnName(column), lo,
                         hi, Printable(Cell(row, column), kShownBytesMax)));
  }
  return value;
}

Result<int64_t> CsvTable::Integer(size_t row, size_t column, int64_t lo, int64_t hi) const {
  int64_t value = 0;
  if (!ParseWhole(Cell(row, column), value) || value < lo || value > hi) {
    return ErrorAt(
        row, fmt::format("{} must be an integer in [{}, {}], got \"{}\"", ColumnName(column), lo,
                         hi, Printable(Cell(row, column), kShownBytesMax)));
  }
  return value;
}

Status CsvTable::ErrorAt(size_t row, std::string_view what) const {
  return InvalidArgument(fmt::format("{}:{}: {}", file_, lines_[row], what));
}

}  // namespace millrace::cost
