#include "ops/hub/partial_blob.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/sha256.h"

namespace millrace::ops {
namespace {

namespace fs = std::filesystem;

const std::string kText = "hello world\n";
constexpr char kGitSha1[] = "3b18e512dba79e4c8300dd08aeb37f8e728b8dad";  // git hash-object

HubBlob Sha256Blob() {
  return {Hex(Sha256Of(kText)), static_cast<int64_t>(kText.size()), BlobDigest::kSha256};
}

class PartialBlobTest : public testing::Test {
 protected:
  PartialBlobTest() : root_(testing::TempDir() + "/partial_blob_test_" + std::to_string(getpid())) {
    fs::create_directories(root_);
  }
  ~PartialBlobTest() override { fs::remove_all(root_); }
  std::string path() const { return root_ + "/blob"; }
  std::string partial() const { return PartialPath(path()); }
  void Leave(const std::string& text) const { std::ofstream(partial()) << text; }
  std::unique_ptr<PartialBlob> Open(const HubBlob& blob) const {
    return std::move(PartialBlob::Open(path(), blob)).value();
  }
  const std::string root_;
};

TEST_F(PartialBlobTest, IsNamedWhenItIsWhole) {
  const auto blob = Open(Sha256Blob());
  ASSERT_TRUE(blob->Append(kText.substr(0, 5)).ok());
  ASSERT_TRUE(blob->Append(kText.substr(5)).ok());
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(blob->Finish("x").ok());
  EXPECT_EQ(ReadFile(path(), 100).value(), kText);
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(PartialBlobTest, ContinuesWhatIsThere) {
  Leave(kText.substr(0, 7));
  const auto blob = Open(Sha256Blob());
  EXPECT_EQ(blob->bytes(), 7);
  ASSERT_TRUE(blob->Append(kText.substr(7)).ok());
  EXPECT_TRUE(blob->Finish("x").ok());
}

TEST_F(PartialBlobTest, BeginsAgainBehindTooMuch) {
  Leave(kText + "and more");
  const auto blob = Open(Sha256Blob());
  EXPECT_EQ(blob->bytes(), 0);
  ASSERT_TRUE(blob->Append(kText).ok());
  EXPECT_TRUE(blob->Finish("x").ok());
}

TEST_F(PartialBlobTest, ForgetsTheDigestOfWhatItThrowsAway) {
  Leave("xxxx");
  const auto blob = Open(Sha256Blob());
  ASSERT_TRUE(blob->StartAnew().ok());
  EXPECT_EQ(blob->bytes(), 0);
  ASSERT_TRUE(blob->Append(kText).ok());
  EXPECT_TRUE(blob->Finish("x").ok());
}

TEST_F(PartialBlobTest, DeletesOtherBytes) {
  Leave("jello");
  const auto blob = Open(Sha256Blob());
  ASSERT_TRUE(blob->Append(kText.substr(5)).ok());
  const Status status = blob->Finish("org/name, f");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("org/name, f: the SHA-256"), std::string::npos);
  EXPECT_FALSE(fs::exists(path()) || fs::exists(partial()));
}

TEST_F(PartialBlobTest, ChecksBlobsOfGit) {
  const HubBlob git = {kGitSha1, static_cast<int64_t>(kText.size()), BlobDigest::kGitSha1};
  const auto blob = Open(git);
  ASSERT_TRUE(blob->Append(kText).ok());
  EXPECT_TRUE(blob->Finish("x").ok());
  const auto other = Open(git);
  ASSERT_TRUE(other->Append("HELLO WORLD\n").ok());
  EXPECT_EQ(other->Finish("x").code(), StatusCode::kDataLoss);
}

TEST_F(PartialBlobTest, TakesNoMoreThanItsSize) {
  const auto blob = Open(Sha256Blob());
  EXPECT_EQ(blob->Append(kText + "!").code(), StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(PartialBlobTest, FollowsNoLink) {
  std::ofstream(root_ + "/precious") << "keep";
  fs::create_symlink(root_ + "/precious", partial());
  EXPECT_FALSE(PartialBlob::Open(path(), Sha256Blob()).ok());
  EXPECT_EQ(ReadFile(root_ + "/precious", 100).value(), "keep");
}

}  // namespace
}  // namespace millrace::ops
