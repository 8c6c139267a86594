#include "model/weight_digests.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"
#include "model/weight_store.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

// The head is larger than a chunk.
const ShapeNumbers kShape = {
    .layers = 2, .hidden = 256, .heads = 4, .vocab = 5000, .positions = 128};

std::string Make(const TestFolder& folder, const char* name, uint64_t shard_bytes_max,
                 uint64_t seed = 3) {
  const std::string path = folder.path(name);
  const Status made = MakeModel(*ShapeConfig("llama-160m", kShape), path,
                                {.seed = seed, .shard_bytes_max = shard_bytes_max});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

std::string FingerprintOf(const std::string& folder) {
  const auto digests = WeightDigests::OfFolder(folder);
  EXPECT_TRUE(digests.ok()) << digests.status().ToString();
  return digests.ok() ? digests->fingerprint() : "";
}

void Edit(const std::string& path, size_t at, std::string_view text) {
  std::string bytes = *ReadFile(path, 1 << 30);
  bytes.replace(at, text.size(), text);
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
}

TEST(WeightDigests, TheFingerprintDoesNotDependOnTheFiles) {
  TestFolder folder;
  const std::string one = FingerprintOf(Make(folder, "one", uint64_t{1} << 40));
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(FingerprintOf(Make(folder, "again", uint64_t{1} << 40)), one);
  EXPECT_EQ(FingerprintOf(Make(folder, "cut", 300'000)), one);
  EXPECT_NE(FingerprintOf(Make(folder, "other", uint64_t{1} << 40, 4)), one);
}

TEST(WeightDigests, EveryByteAndTheTypeCount) {
  TestFolder folder;
  const std::string path = Make(folder, "model", uint64_t{1} << 40);
  const std::string file = path + "/model.safetensors";
  const std::string whole = *ReadFile(file, 1 << 30), one = FingerprintOf(path);
  for (const size_t at : {whole.size() - 1, whole.size() / 2, whole.size() / 3}) {
    Edit(file, at, std::string(1, static_cast<char>(whole[at] ^ 1)));
    EXPECT_NE(FingerprintOf(path), one) << at;
    ASSERT_TRUE(WriteFileAtomically(file, whole).ok());
  }
  EXPECT_EQ(FingerprintOf(path), one);
  // The same bytes read as another type of the same size.
  const size_t dtype = whole.find("\"BF16\"");
  ASSERT_NE(dtype, std::string::npos);
  Edit(file, dtype, "\"F16\" ");
  EXPECT_NE(FingerprintOf(path), one);
}

TEST(WeightDigests, EachChunkMatchesItsDigest) {
  TestFolder folder;
  const std::string path = Make(folder, "model", 900'000);
  const auto digests = WeightDigests::OfFolder(path);
  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  const auto store = WeightStore::OfFolder(path);
  ASSERT_TRUE(store.ok());
  const auto ranges = (*store)->RangesOf(*digests);
  ASSERT_TRUE(ranges.ok()) << ranges.status().ToString();
  ASSERT_EQ(digests->digests().size(), ranges->size() * kDigestBytes);
  size_t full = 0;
  for (size_t i = 0; i < ranges->size(); ++i) {
    const WeightRange& range = (*ranges)[i];
    std::vector<std::byte> bytes(range.end - range.begin);
    ASSERT_LE(bytes.size(), kDigestChunkBytes);
    full += bytes.size() == kDigestChunkBytes;
    ASSERT_TRUE((*store)->Read(range, bytes).ok());
    EXPECT_TRUE(digests->Matches(i, bytes));
    EXPECT_FALSE(digests->Matches(i, std::span(bytes).first(bytes.size() - 1)));
    bytes[(i * 7919) % bytes.size()] ^= std::byte{4};
    EXPECT_FALSE(digests->Matches(i, bytes));
  }
  EXPECT_GT(full, 0u) << "a tensor larger than a chunk";
  EXPECT_GT(ranges->size(), full + 10);
}

TEST(WeightDigests, ALargeModelIsDigestedByTheBeginningOfEachChunk) {
  TestFolder folder;
  const std::string path = Make(folder, "model", uint64_t{1} << 40);
  const std::string file = path + "/model.safetensors";
  const auto digests = WeightDigests::OfFolder(path, 0);
  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  EXPECT_NE(digests->fingerprint(), FingerprintOf(path));
  size_t chunk = 0;
  while (digests->RunOf(chunk).end - digests->RunOf(chunk).begin < kDigestChunkBytes) ++chunk;
  const std::string whole = *ReadFile(file, 1 << 30);
  const FileRun run = digests->RunOf(chunk + 1);
  for (const auto& [at, counts] : {std::pair<size_t, bool>{0, true},
                                   {kDigestSampleBytes - 1, true},
                                   {kDigestSampleBytes, false}}) {
    Edit(file, run.begin + at, std::string(1, static_cast<char>(whole[run.begin + at] ^ 1)));
    const auto now = WeightDigests::OfFolder(path, 0);
    ASSERT_TRUE(now.ok());
    EXPECT_EQ(now->fingerprint() != digests->fingerprint(), counts) << at;
    const std::string edited = *ReadFile(file, 1 << 30);
    const auto bytes = std::as_bytes(std::span(edited).subspan(run.begin, run.end - run.begin));
    EXPECT_EQ(digests->Matches(chunk + 1, bytes), !counts) << at;
    ASSERT_TRUE(WriteFileAtomically(file, whole).ok());
  }
}

TEST(WeightDigests, DigestsFromAPeerAreCheckedByTheFingerprint) {
  TestFolder folder;
  const std::string path = Make(folder, "model", uint64_t{1} << 40);
  const auto whole = WeightDigests::OfFolder(path);
  ASSERT_TRUE(whole.ok());
  auto heads = WeightDigests::OfHeads(path);
  ASSERT_TRUE(heads.ok());
  EXPECT_EQ(heads->chunks(), whole->chunks());
  EXPECT_EQ(heads->fingerprint(), "");
  std::vector<std::byte> digests(whole->digests().begin(), whole->digests().end());
  EXPECT_TRUE(heads->Take(digests).ok());
  EXPECT_EQ(heads->fingerprint(), whole->fingerprint());
  digests[40] ^= std::byte{1};
  EXPECT_TRUE(heads->Take(digests).ok());
  EXPECT_NE(heads->fingerprint(), whole->fingerprint());
  digests.pop_back();
  EXPECT_EQ(heads->Take(digests).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::model
