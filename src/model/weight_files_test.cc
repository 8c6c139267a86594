#include "model/weight_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/rng.h"
#include "model/folder.h"
#include "model/test_folder.h"
#include "model/testing_messages.h"
#include "model/weight_plan.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
constexpr const char* kTwo = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

std::string OpenError(const TestFolder& folder) {
  Result<WeightFiles> files = WeightFiles::Open(folder.path());
  EXPECT_FALSE(files.ok());
  return files.ok() ? "" : files.status().message();
}

TEST(WeightFiles, OneFile) {
  TestFolder folder;
  folder.Write("model.safetensors", SafetensorsFile(kOne, 8));
  Result<WeightFiles> files = WeightFiles::Open(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  ASSERT_TRUE(files->Find("a"));
  EXPECT_EQ(files->Find("a")->bytes(), 8u);
  EXPECT_EQ(files->Find("a")->data()[1], 37);
  EXPECT_FALSE(files->Find("b"));
}

TEST(WeightFiles, Shards) {
  TestFolder folder;
  folder.Write("x.safetensors", SafetensorsFile(kOne, 8));
  folder.Write("y.safetensors", SafetensorsFile(kTwo, 4));
  folder.Write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":12,"more":[1,{"deep":null}]},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})");
  Result<WeightFiles> files = WeightFiles::Open(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->Find("b")->bytes(), 4u);
}

TEST(WeightFiles, NamesTheMissingPart) {
  TestFolder folder;
  ExpectPart(OpenError(folder), "holds neither model.safetensors nor");
  folder.Write("pytorch_model.bin", "x");
  ExpectPart(OpenError(folder), "convert them to safetensors");
  folder.Write("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors"}})");
  ExpectPart(OpenError(folder), "shard x.safetensors is missing");
  folder.Write("x.safetensors", SafetensorsFile(kTwo, 4));
  ExpectPart(OpenError(folder), "tensor `a` is listed in x.safetensors");
  folder.Write("x.safetensors", SafetensorsFile(kOne, 7));
  ExpectPart(OpenError(folder), "x.safetensors: truncated");
}

TEST(WeightFiles, RefusesMalformedIndexes) {
  for (const char* index :
       {"", "[]", "1", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":"x"})",
        R"({})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":{}}})",
        R"({"weight_map":{"a":["x"]}})", R"({"weight_map":{"a":null}})",
        R"({"weight_map":{"a":"x","a":"y"}})", R"({"weight_map":{"a":"x"},"weight_map":{"b":"y"}})",
        R"({"weight_map":{"a":"x"})", R"({"metadata":{"weight_map":{"a":"x"}}})"}) {
    EXPECT_FALSE(ParseShardIndex(index).ok()) << index;
  }
  EXPECT_FALSE(ParseShardIndex(std::string(100000, '[')).ok());
}

TEST(WeightFiles, NamesStayInsideTheFolder) {
  TestFolder outside, folder;
  outside.Write("secret.safetensors", SafetensorsFile(kOne, 8));
  const std::string absolute = outside.path("secret.safetensors");
  for (std::string name :
       {std::string("../") + fs::path(outside.path()).filename().string() + "/secret.safetensors",
        absolute, std::string("."), std::string(".."), std::string(""),
        std::string("sub/x.safetensors"), std::string("a\\u0000b"), std::string(300, 'x')}) {
    folder.Write("model.safetensors.index.json", R"({"weight_map":{"a":")" + name + R"("}})");
    ExpectPart(OpenError(folder), "not a plain file name");
  }
}

TEST(WeightFiles, LinksStayInsideTheFolderOrTheCache) {
  TestFolder outside, folder;
  outside.Write("secret.safetensors", SafetensorsFile(kOne, 8));
  fs::create_symlink(outside.path("secret.safetensors"), folder.path("model.safetensors"));
  ExpectPart(OpenError(folder), "outside the model folder");
  fs::remove(folder.path("model.safetensors"));
  fs::create_symlink("/dev/zero", folder.path("model.safetensors"));
  ExpectPart(OpenError(folder), "outside the model folder");

  // The Hugging Face cache: snapshots/REF/NAME links to blobs/HASH.
  fs::create_directories(folder.path("snapshots/main"));
  fs::create_directories(folder.path("blobs"));
  folder.Write("blobs/0123", SafetensorsFile(kOne, 8));
  fs::create_symlink("../../blobs/0123", folder.path("snapshots/main/model.safetensors"));
  Result<WeightFiles> files = WeightFiles::Open(folder.path("snapshots/main"));
  EXPECT_TRUE(files.ok()) << files.status().ToString();
}

TEST(WeightFiles, RefusesAnythingButARegularFile) {
  TestFolder folder;
  ASSERT_EQ(mkfifo(folder.path("model.safetensors").c_str(), 0600), 0);
  ExpectPart(OpenError(folder), "not a regular file");
  fs::remove(folder.path("model.safetensors"));
  fs::create_directory(folder.path("model.safetensors"));
  EXPECT_NE(OpenError(folder), "");
}

TEST(WeightFiles, WidensUnalignedHalves) {
  // One byte of padding makes every later tensor unaligned.
  TestFolder folder;
  std::string file = SafetensorsFile(
      R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"h":{"dtype":"F16","shape":[4],"data_offsets":[1,9]},)"
      R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[9,13]},"f":{"dtype":"F32","shape":[1],"data_offsets":[13,17]}})",
      17);
  const unsigned char data[17] = {0,    0x00, 0x3c, 0x01, 0x00, 0x00, 0xfc, 0x55, 0xb5,
                                  0x80, 0x3f, 0x00, 0xc0, 0x00, 0x00, 0x20, 0x41};
  file.replace(file.size() - 17, 17, reinterpret_cast<const char*>(data), 17);
  folder.Write("model.safetensors", file);
  Result<WeightFiles> files = WeightFiles::Open(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  const std::vector<float> h = ToFloats(*files->Find("h"));
  EXPECT_EQ(h[0], 1.0f);
  EXPECT_EQ(h[1], 0x1p-24f);
  EXPECT_EQ(h[2], -std::numeric_limits<float>::infinity());
  EXPECT_FLOAT_EQ(h[3], -0.33325195f);
  EXPECT_EQ(ToFloats(*files->Find("b")), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(ToFloats(*files->Find("f")), (std::vector<float>{10.0f}));
}

TEST(WeightFiles, SurvivesRandomIndexes) {
  const std::string index =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"x.safetensors","b":"y"}})";
  Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    std::string edited = index;
    edited[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(index.size()) - 1))] =
        static_cast<char>(rng.Between(0, 255));
    Result<ShardIndex> parsed = ParseShardIndex(edited);
    if (parsed.ok()) {
      EXPECT_LE(parsed->file_of.size(), 2u);
    }
  }
}

}  // namespace
}  // namespace millrace::model
