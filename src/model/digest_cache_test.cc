#include "model/digest_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/file.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::nanoseconds kAtOnce(0);

class DigestCacheTest : public testing::Test {
 protected:
  DigestCacheTest() : cache_folder_(folder_.path("cache/weights")), cache_(cache_folder_, kAtOnce) {
    Make("model", 3);
  }

  std::string Make(const std::string& name, uint64_t seed) {
    const ShapeNumbers shape = {
        .layers = 2, .hidden = 64, .heads = 4, .vocab = 300, .positions = 64};
    const std::string path = folder_.path(name);
    EXPECT_TRUE(MakeModel(*ShapeConfig("llama-160m", shape), path,
                          {.seed = seed, .shard_bytes_max = 100'000})
                    .ok());
    return path;
  }
  std::string Fingerprint(const DigestCache& cache, const std::string& model) {
    const auto digests = cache.Of(model);
    EXPECT_TRUE(digests.ok()) << digests.status().ToString();
    EXPECT_EQ(digests->fingerprint(), WeightDigests::OfFolder(model)->fingerprint());
    return digests->fingerprint();
  }
  std::string Fingerprint() { return Fingerprint(cache_, model_); }
  std::vector<fs::path> Kept() {
    std::vector<fs::path> files;
    if (!fs::exists(cache_folder_)) return files;
    for (const auto& entry : fs::directory_iterator(cache_folder_)) files.push_back(entry.path());
    return files;
  }
  // Writes kept digests that say something else, so that one sees whether they are used.
  void Replace(const fs::path& file, const std::string& content) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
  }

  TestFolder folder_;
  const std::string model_ = folder_.path("model"), cache_folder_;
  const DigestCache cache_;
};

TEST_F(DigestCacheTest, TheSecondTimeNothingIsRead) {
  const std::string first = Fingerprint();
  ASSERT_EQ(Kept().size(), 1u);
  // Another model's digests under this one's name would be taken for it: they are not computed.
  const std::string other = Make("other", 4);
  Fingerprint(cache_, other);
  ASSERT_EQ(Kept().size(), 2u);
  const auto files = Kept();
  const std::string a = *ReadFile(files[0], 1 << 20), b = *ReadFile(files[1], 1 << 20);
  Replace(files[0], b);
  Replace(files[1], a);
  EXPECT_EQ(cache_.Of(other)->digests().size(), WeightDigests::OfFolder(other)->digests().size());
  EXPECT_NE(cache_.Of(model_)->fingerprint(), first);
  EXPECT_EQ(DigestCache("").Of(model_)->fingerprint(), first);
}

TEST_F(DigestCacheTest, AChangedFileIsReadAgain) {
  const std::string first = Fingerprint();
  const std::string file = WeightDigests::OfHeads(model_)->paths().front();
  std::string bytes = *ReadFile(file, 1 << 30);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const auto time = fs::last_write_time(file);
  Replace(file, bytes);  // in place, with the same size
  fs::last_write_time(file, time);
  EXPECT_NE(Fingerprint(), first);
  EXPECT_EQ(Kept().size(), 2u);
}

TEST_F(DigestCacheTest, DamageIsNoError) {
  const std::string first = Fingerprint();
  const fs::path file = Kept().front();
  const std::string whole = *ReadFile(file, 1 << 20);
  std::string other = whole;
  other[5] = static_cast<char>(other[5] ^ 1);
  for (const std::string& content : {std::string(), whole.substr(1), whole + "x", other}) {
    Replace(file, content);
    EXPECT_EQ(Fingerprint(), first);
    EXPECT_EQ(*ReadFile(file, 1 << 20), whole);
  }
  const DigestCache no_folder("/proc/nowhere", kAtOnce);
  EXPECT_EQ(Fingerprint(no_folder, model_), first);
}

// Its times could be those of another content, too.
TEST_F(DigestCacheTest, AFileThatHasJustChangedIsNotTrusted) {
  const DigestCache careful(cache_folder_);
  Fingerprint(careful, model_);
  EXPECT_TRUE(Kept().empty());
}

TEST_F(DigestCacheTest, OldOnesAreGivenUp) {
  Fingerprint();
  const fs::path first = Kept().front();
  for (size_t i = 0; i < DigestCache::kModelsMax + 4; ++i) {
    const fs::path copy = first.string() + std::to_string(i);
    fs::copy_file(first, copy);
    fs::last_write_time(copy, fs::file_time_type::clock::now() - std::chrono::hours(2 + i));
  }
  fs::last_write_time(first, fs::file_time_type::clock::now() - std::chrono::hours(1000));
  Fingerprint();  // is used
  Fingerprint(cache_, Make("other", 4));
  EXPECT_EQ(Kept().size(), DigestCache::kModelsMax);
  EXPECT_TRUE(fs::exists(first));
}

TEST_F(DigestCacheTest, AFolderWithoutAModelIsTheSameError) {
  EXPECT_EQ(cache_.Of(folder_.path("none")).status().message(),
            WeightDigests::OfFolder(folder_.path("none")).status().message());
}

}  // namespace
}  // namespace millrace::model
