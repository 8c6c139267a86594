#include "model/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <time.h>

#include "base/rng.h"
#include "model/test_folder.h"

namespace millrace::model {
namespace {

TEST(Safetensors, ReadsTensorsOfEveryRank) {
  const std::string file = SafetensorsFile(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
      R"("none":{"dtype":"F16","shape":[0,7],"data_offsets":[26,26]},)"
      R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[26,29]}}   )",
      29);
  Result<SafetensorsHeader> header = ParseSafetensors(Bytes(file));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 4u);
  const TensorEntry& a = header->tensors.at("a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.compute_dtype(), DType::kF32);
  EXPECT_EQ(a.begin, file.size() - 29);
  EXPECT_EQ(a.end, file.size() - 5);
  EXPECT_EQ(header->tensors.at("scalar").compute_dtype(), DType::kBF16);
  EXPECT_EQ(header->tensors.at("none").compute_dtype(), DType::kF16);
  EXPECT_EQ(header->tensors.at("mask").compute_dtype(), std::nullopt);
}

struct Malformed {
  const char* rule;
  const char* header;
  size_t data_bytes;
  const char* message;  // part of it
  StatusCode code = StatusCode::kInvalidArgument;
};

std::ostream& operator<<(std::ostream& os, const Malformed& m) { return os << m.rule; }

constexpr Malformed kManifest[] = {
    {"empty header", "", 0, "begin with '{'"},
    {"begins with a space", " {}", 0, "begin with '{'"},
    {"a list", "[]", 0, "begin with '{'"},
    {"cut JSON", R"({"a":{"dtype":"F32")", 0, "malformed JSON"},
    {"text after the object", R"({}x)", 0, "malformed JSON"},
    {"invalid UTF-8", "{\"\xff\":1}", 0, "malformed JSON"},
    {"tensor is a number", R"({"a":1})", 0, "tensor `a`: a number"},
    {"tensor is null", R"({"a":null})", 0, "null"},
    {"tensor is a list", R"({"a":[1]})", 0, "a list"},
    {"tensor is a string", R"({"a":"b"})", 0, "a string"},
    {"nested object", R"({"a":{"dtype":{}}})", 0, "an object"},
    {"nested list", R"({"a":{"shape":[[1]]}})", 0, "a list"},
    {"metadata not strings", R"({"__metadata__":{"a":1}})", 0, "a number"},
    {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
    {"tensor twice",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2, "tensor `a`: appears twice"},
    {"key twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
     "`dtype` appears twice"},
    {"empty name", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "name of 0 bytes"},
    {"unknown key", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
     "unknown key `x`"},
    {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "needs dtype"},
    {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "needs dtype"},
    {"no offsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "needs dtype"},
    {"unknown dtype", R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}})", 1,
     "tensor `a`: unknown dtype Q4"},
    {"dtype a number", R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1, "a number"},
    {"dtype a list", R"({"a":{"dtype":[],"shape":[1],"data_offsets":[0,1]}})", 1, "a list"},
    {"negative dimension", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
     "negative"},
    {"fraction", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "fraction"},
    {"huge number", R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})",
     1, "fraction"},
    {"huge dimension",
     R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1, "too large"},
    {"rank", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
     "more than 8"},
    {"product overflows",
     R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     "overflows"},
    {"product wraps to the size",
     R"({"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}})", 16,
     "overflows"},
    {"three offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
     "two numbers"},
    {"no offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[]}})", 1, "two numbers"},
    {"ends before it begins", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
     "before they begin"},
    {"shape larger than range", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
     "needs 8 bytes"},
    {"shape smaller than range", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8,
     "needs 4 bytes"},
    {"half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2,
     "whole number of bytes"},
    {"overlap",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     3, "tensor `b`: overlaps"},
    {"same range twice",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
     2, "overlaps"},
    {"hole at the start", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
     "tensor `a`: leaves a hole"},
    {"hole between",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3, "tensor `b`: leaves a hole"},
    {"bytes after the end", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
     "1 bytes after"},
    {"data without tensors", "{}", 5, "5 bytes after"},
    {"truncated data", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 8, "truncated",
     StatusCode::kDataLoss},
    {"offset near 2^64",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})",
     1, "hole"},
};

class SafetensorsManifest : public testing::TestWithParam<Malformed> {};

TEST_P(SafetensorsManifest, IsRefusedWithTheRule) {
  const Malformed& m = GetParam();
  Result<SafetensorsHeader> header =
      ParseSafetensors(Bytes(SafetensorsFile(m.header, m.data_bytes)));
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), m.code) << header.status().ToString();
  EXPECT_NE(header.status().message().find(m.message), std::string::npos)
      << header.status().ToString();
}

INSTANTIATE_TEST_SUITE_P(Rules, SafetensorsManifest, testing::ValuesIn(kManifest));

TEST(Safetensors, RefusesWrongHeaderLengths) {
  for (uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{7}}) {
    std::string file = SafetensorsFile("{}", 0);
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xff);
    Result<SafetensorsHeader> header = ParseSafetensors(Bytes(file));
    ASSERT_FALSE(header.ok());
    EXPECT_NE(header.status().message().find("beyond the limit"), std::string::npos);
  }
  std::string file = SafetensorsFile("{}", 0);
  file[0] = 100;
  EXPECT_EQ(ParseSafetensors(Bytes(file)).status().code(), StatusCode::kDataLoss);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = SafetensorsFile(
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}})",
      32);
  ASSERT_TRUE(ParseSafetensors(Bytes(file)).ok());
  for (size_t n = 0; n < file.size(); ++n) {
    Result<SafetensorsHeader> header = ParseSafetensors(Bytes(file).first(n));
    ASSERT_FALSE(header.ok()) << n;
    EXPECT_EQ(header.status().code(), StatusCode::kDataLoss) << n << header.status().ToString();
  }
}

TEST(Safetensors, SurvivesRandomEdits) {
  const std::string file = SafetensorsFile(
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}})",
      32);
  Rng rng(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string edited = file;
    for (int64_t edits = rng.Between(1, 3); edits > 0; --edits) {
      const size_t at = static_cast<size_t>(rng.Between(0, static_cast<int64_t>(file.size()) - 33));
      edited[at] = static_cast<char>(rng.Between(0, 255));
    }
    Result<SafetensorsHeader> header = ParseSafetensors(Bytes(edited));
    if (!header.ok()) continue;
    ++accepted;  // for example with a renamed tensor; its ranges must still be inside
    for (const auto& [name, entry] : header->tensors) {
      ASSERT_LE(entry.begin, entry.end);
      ASSERT_LE(entry.end, edited.size());
    }
  }
  EXPECT_LT(accepted, 10000);
}

// CPU seconds to read a header of `tensors` tensors.
double SecondsToRead(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i) {
    header += fmt::format(
        R"({}"model.layers.{}.self_attn.q_proj.weight":{{"dtype":"BF16","shape":[1,1],"data_offsets":[{},{}]}})",
        i == 0 ? "" : ",", i, 2 * i, 2 * i + 2);
  }
  const std::string file = SafetensorsFile(header + "}", 2 * tensors);
  const auto cpu_seconds = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  const double start = cpu_seconds();
  Result<SafetensorsHeader> parsed = ParseSafetensors(Bytes(file));
  const double seconds = cpu_seconds() - start;
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->tensors.size(), static_cast<size_t>(tensors));
  return seconds;
}

TEST(Safetensors, TimeGrowsWithTheHeaderNotItsSquare) {
  // With sixteen times the tensors, a quadratic reader would need 256 times as long.
  EXPECT_LT(SecondsToRead(64'000), 80 * std::max(SecondsToRead(4'000), 1e-3));
}

}  // namespace
}  // namespace millrace::model
