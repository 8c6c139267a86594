#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/json.h"
#include "base/log.h"

namespace millrace::model {
namespace {

struct FormatDType {
  std::string_view name;
  int bits;
};

constexpr std::array<FormatDType, 22> kFormatDTypes = {{
    {"BOOL", 8},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16},        {"F16", 16},        {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32},        {"C64", 64},        {"F64", 64},    {"I64", 64},    {"U64", 64},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

std::optional<int> BitsOf(std::string_view dtype) {
  for (const FormatDType& d : kFormatDTypes) {
    if (d.name == dtype) return d.bits;
  }
  return {};
}

// Parses the header's JSON without building a tree: a header of 100 MB must not cost a gigabyte.
// Depth 1 is the object of tensors, 2 a tensor or __metadata__, 3 an array of numbers.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  const Status& status() const { return status_; }
  SafetensorsHeader& header() { return header_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (depth_ != 3) return Unexpected("a number");
    if (numbers_.size() >= kTensorRankMax) {
      return Fail(fmt::format("`{}` has more than {} numbers", field_, kTensorRankMax));
    }
    numbers_.push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (depth_ != 2) return Unexpected("a string");
    if (in_metadata_) return true;
    if (field_ != "dtype") return Unexpected("a string");
    entry_.dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ > 1) return Unexpected("an object");
    ++depth_;
    if (depth_ == 2) {
      entry_ = {};
      fields_.clear();
    }
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      name_ = std::move(name);
      if (name_.empty() || name_.size() > kTensorNameBytesMax) {
        return Fail(fmt::format("a name of {} bytes, the limit is 1 to {}", name_.size(),
                                kTensorNameBytesMax));
      }
      if (in_metadata_ ? std::exchange(seen_metadata_, true) : header_.tensors.contains(name_)) {
        return Fail("appears twice");
      }
      return true;
    }
    field_ = std::move(name);
    if (!fields_.insert(field_).second)
      return Fail(fmt::format("key `{}` appears twice", Printable(field_)));
    if (!in_metadata_ && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return Fail(fmt::format("unknown key `{}`", Printable(field_)));
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 0 || in_metadata_) return true;
    if (fields_.size() != 3) return Fail("needs dtype, shape and data_offsets");
    if (header_.tensors.size() >= kSafetensorsTensorsMax) {
      return Fail(fmt::format("more than {} tensors", kSafetensorsTensorsMax));
    }
    header_.tensors.emplace(name_, std::move(entry_));
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return Unexpected("a list");
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    if (field_ == "shape") {
      for (uint64_t n : numbers_) {
        if (n > INT64_MAX) return Fail(fmt::format("dimension {} is too large", n));
        entry_.shape.push_back(static_cast<int64_t>(n));
      }
      return true;
    }
    if (numbers_.size() != 2) return Fail("data_offsets must be two numbers");
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    status_ = InvalidArgument(fmt::format("header is malformed JSON at byte {}", position));
    return false;
  }

 private:
  bool Fail(std::string_view why) {
    status_ =
        InvalidArgument(name_.empty() ? fmt::format("header: {}", why)
                                      : fmt::format("tensor `{}`: {}", Printable(name_), why));
    return false;
  }
  bool Unexpected(std::string_view what) {
    return Fail(fmt::format("{} is not allowed here", what));
  }

  Status status_;
  SafetensorsHeader header_;
  int depth_ = 0;
  bool in_metadata_ = false, seen_metadata_ = false;
  std::string name_, field_;
  std::set<std::string> fields_;
  std::vector<uint64_t> numbers_;
  TensorEntry entry_;
};

// Bytes of `entry` by dtype and shape, or an error if that number is invalid.
Result<uint64_t> BytesByShape(const TensorEntry& entry) {
  std::optional<int> bits = BitsOf(entry.dtype);
  if (!bits) return InvalidArgument(fmt::format("unknown dtype {}", Printable(entry.dtype)));
  uint64_t total = static_cast<uint64_t>(*bits);
  for (int64_t n : entry.shape) {
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(n), &total)) {
      return InvalidArgument(fmt::format("shape {} overflows 64 bits", ShapeText(entry.shape)));
    }
  }
  if (total % 8 != 0) return InvalidArgument("the size is not a whole number of bytes");
  return total / 8;
}

// Each range has the size that dtype and shape need, and the ranges follow each other without hole
// or overlap to exactly the end of the file. Turns offsets into the data into offsets into the
// file.
Status CheckRanges(SafetensorsHeader& header, uint64_t data_begin, uint64_t file_bytes) {
  std::vector<std::pair<const std::string*, TensorEntry*>> order;
  order.reserve(header.tensors.size());
  for (auto& [name, entry] : header.tensors) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->begin, a.second->end, *a.first) <
           std::tie(b.second->begin, b.second->end, *b.first);
  });
  const uint64_t data_bytes = file_bytes - data_begin;
  uint64_t expected = 0;
  for (auto& [name, entry] : order) {
    const std::string context = fmt::format("tensor `{}`", Printable(*name));
    if (entry->end < entry->begin) {
      return InvalidArgument(fmt::format("{}: data_offsets end at {}, before they begin at {}",
                                         context, entry->end, entry->begin));
    }
    Result<uint64_t> bytes = BytesByShape(*entry);
    if (!bytes.ok()) return bytes.status().WithContext(context);
    if (*bytes != entry->end - entry->begin) {
      return InvalidArgument(fmt::format("{}: {} {} needs {} bytes, data_offsets give {}", context,
                                         entry->dtype, ShapeText(entry->shape), *bytes,
                                         entry->end - entry->begin));
    }
    if (entry->begin != expected) {
      return InvalidArgument(fmt::format(
          "{}: {} at byte {} of the data", context,
          entry->begin < expected ? "overlaps the tensor before it" : "leaves a hole before it",
          entry->begin));
    }
    expected = entry->end;
  }
  if (expected > data_bytes) {
    return DataLoss(
        fmt::format("truncated: the header describes {} bytes, the file has {}; "
                    "download it again",
                    data_begin + expected, file_bytes));
  }
  if (expected < data_bytes) {
    return InvalidArgument(fmt::format("{} bytes after the last tensor", data_bytes - expected));
  }
  for (auto& [name, entry] : order) {
    entry->begin += data_begin;
    entry->end += data_begin;
  }
  return OkStatus();
}

}  // namespace

std::optional<DType> TensorEntry::compute_dtype() const {
  if (dtype == "F32") return DType::kF32;
  if (dtype == "F16") return DType::kF16;
  if (dtype == "BF16") return DType::kBF16;
  return {};
}

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> file) {
  if (file.size() < 8) {
    return DataLoss(
        fmt::format("truncated: {} bytes, a header needs 8; download it again", file.size()));
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | file[static_cast<size_t>(i)];
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return InvalidArgument(
        fmt::format("header length {} is beyond the limit of {}: not a safetensors "
                    "file",
                    header_bytes, kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > file.size() - 8) {
    return DataLoss(
        fmt::format("truncated: the header has {} bytes, the file only {}; download it "
                    "again",
                    header_bytes, file.size()));
  }
  const auto text = file.subspan(8, header_bytes);
  if (text.empty() || text[0] != '{') return InvalidArgument("header does not begin with '{'");
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return reader.status();
  MR_RETURN_IF_ERROR(CheckRanges(reader.header(), 8 + header_bytes, file.size()));
  return std::move(reader.header());
}

}  // namespace millrace::model
