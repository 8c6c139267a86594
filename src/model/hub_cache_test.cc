#include "model/hub_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace millrace::model {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

Environment With(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  };
}

TEST(HubCache, ItsPlaceIsThatOfTheHubsOwnTools) {
  Variables v = {{"HOME", "/h"}};
  EXPECT_EQ(HubCache(With(v)), "/h/.cache/huggingface/hub");
  v["XDG_CACHE_HOME"] = "/x";
  EXPECT_EQ(HubCache(With(v)), "/x/huggingface/hub");
  v["HF_HOME"] = "/hf";
  EXPECT_EQ(HubHome(With(v)), "/hf");
  EXPECT_EQ(HubCache(With(v)), "/hf/hub");
  v["HF_HUB_CACHE"] = "/c";
  EXPECT_EQ(HubCache(With(v)), "/c");
  const HubRepository repository = RepositoryOf("org/name", With(v));
  EXPECT_EQ(repository.Blob("abc"), "/c/models--org--name/blobs/abc");
  EXPECT_EQ(repository.Ref("refs/pr/1"), "/c/models--org--name/refs/refs/pr/1");
  EXPECT_EQ(repository.Snapshot("c0"), "/c/models--org--name/snapshots/c0");
  EXPECT_EQ(repository.Lock("abc"), "/c/.locks/models--org--name/abc.lock");
}

TEST(HubCache, NamesAndRevisionsStayInTheCache) {
  for (const char* name : {"org/name", "a-b/c_d.e-7B", "0/1"}) EXPECT_TRUE(IsHubName(name)) << name;
  for (const char* name : {"name", "a/b/c", "../x", "a/..", "a/.b", ".a/b", "/a", "a/", "a//b",
                           "a/b c", "a/b;c", "a/x..y", ""}) {
    EXPECT_FALSE(IsHubName(name)) << name;
  }
  EXPECT_FALSE(IsHubName(std::string("a/b\0c", 5)));
  EXPECT_FALSE(IsHubName("a/" + std::string(300, 'b')));
  for (const char* text : {"main", "v1.0", "refs/pr/12", "feature/x_y"}) {
    EXPECT_TRUE(IsRevision(text)) << text;
  }
  for (const char* text : {"", "..", "a/../b", "/main", "main/", "a b", "a?b", "a%2Fb", ".x"}) {
    EXPECT_FALSE(IsRevision(text)) << text;
  }
  EXPECT_TRUE(IsCommit(std::string(40, 'a')));
  EXPECT_FALSE(IsCommit(std::string(40, 'A')));
  EXPECT_FALSE(IsCommit(std::string(39, 'a')));
}

class HubSnapshotTest : public testing::Test {
 protected:
  HubSnapshotTest() : root_(testing::TempDir() + "/hub_cache_test_" + std::to_string(getpid())) {
    fs::create_directories(root_);
  }
  ~HubSnapshotTest() override { fs::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
  }
  const std::string root_;
};

TEST_F(HubSnapshotTest, MissingFilesAreThoseThatAModelNeeds) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(MissingFiles(root_), (Names{"config.json", "tokenizer.json", "model.safetensors"}));
  Write("config.json", "{}");
  Write("tokenizer.json", "{}");
  Write("model.safetensors.index.json",
        R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  Write("1.safetensors", "");
  EXPECT_EQ(MissingFiles(root_), Names{"2.safetensors"});
  fs::create_symlink("../../blobs/gone", root_ + "/2.safetensors");
  EXPECT_EQ(MissingFiles(root_), Names{"2.safetensors"});
  Write("model.safetensors", "");  // it takes precedence, as it does for the loader
  EXPECT_EQ(MissingFiles(root_), Names{});
}

}  // namespace
}  // namespace millrace::model
