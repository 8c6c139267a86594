#include "model/model_path.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

class ModelPathTest : public testing::Test {
 protected:
  ModelPathTest() : root_(testing::TempDir() + "/model_path_test_" + std::to_string(getpid())) {
    fs::create_directories(root_);
  }
  ~ModelPathTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }
  Result<ModelPath> Find(const std::string& model, const std::string& revision = "main") {
    return FindModel(
        model,
        [this](const std::string& name) -> std::optional<std::string> {
          if (name == "HF_HOME") return root_ + "/hf";
          return std::nullopt;
        },
        revision);
  }

  const std::string root_;
};

TEST_F(ModelPathTest, TakesAFolderAsItIs) {
  Write("m/config.json", "{}");
  auto found = Find(root_ + "/m/");
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->folder, root_ + "/m");
}

TEST_F(ModelPathTest, FollowsTheHubCachesMainReference) {
  Write("hf/hub/models--org--name/refs/main", "abc123\n");
  Write("hf/hub/models--org--name/snapshots/abc123/config.json", "{}");
  auto found = Find("org/name");
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->folder, root_ + "/hf/hub/models--org--name/snapshots/abc123");
  EXPECT_EQ(found->name, "org/name");
}

TEST_F(ModelPathTest, FindsRevisions) {
  const std::string commit(40, 'b');
  Write("hf/hub/models--org--name/refs/main", std::string(40, 'a'));
  Write("hf/hub/models--org--name/refs/refs/pr/1", commit);
  Write("hf/hub/models--org--name/snapshots/" + commit + "/config.json", "{}");
  for (const std::string& revision : {std::string("refs/pr/1"), commit}) {
    auto found = Find("org/name", revision);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(found->folder, root_ + "/hf/hub/models--org--name/snapshots/" + commit);
  }
  EXPECT_EQ(Find("org/name").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Find("org/name", "../x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(IsOnHub("org/name"));
  EXPECT_FALSE(IsOnHub(root_));
  Write("m/config.json", "{}");
  EXPECT_NE(Find(root_ + "/m", "v1").status().message().find("leave out --revision"),
            std::string::npos);
}

TEST_F(ModelPathTest, ErrorsSayWhatWasTriedAndWhatToDo) {
  const auto error = [this](const std::string& model) { return Find(model).status().message(); };
  EXPECT_NE(error("org/absent").find("models--org--absent"), std::string::npos);
  EXPECT_NE(error("org/absent").find("hf download org/absent"), std::string::npos);
  Write("empty/x", "");
  EXPECT_NE(error(root_ + "/empty").find("no config.json"), std::string::npos);
  EXPECT_NE(error(root_ + "/empty/x").find("is a file"), std::string::npos);
  EXPECT_NE(error("nowhere").find("folder nowhere does not exist"), std::string::npos);
  EXPECT_EQ(error("../../etc").find("hf download"), std::string::npos);
  EXPECT_EQ(error("a/..").find("hf download"), std::string::npos);
  EXPECT_EQ(error("org/na;me").find("hf download"), std::string::npos);
}

TEST_F(ModelPathTest, AReferenceCannotLeaveTheCache) {
  Write("hf/hub/models--org--name/refs/main", "../../../../outside");
  Write("outside/config.json", "{}");
  EXPECT_FALSE(Find("org/name").ok());
}

}  // namespace
}  // namespace millrace::model
