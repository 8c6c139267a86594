#include "ops/hub/listing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace millrace::ops {
namespace {

const std::string kCommit(40, 'c');
const std::string kSha1(40, '1');
const std::string kSha256(64, '2');

Result<HubListing> Parse(const std::string& siblings) {
  return ParseHubListing(fmt::format(R"({{"sha": "{}", "siblings": [{}]}})", kCommit, siblings));
}

std::string Entry(const std::string& name, const std::string& size = "3") {
  return fmt::format(R"({{"rfilename": "{}", "size": {}, "blobId": "{}"}})", name, size, kSha1);
}

TEST(HubListing, HasNamesSizesAndDigests) {
  const auto listing =
      Parse(Entry("config.json") + "," +
            fmt::format(R"({{"rfilename": "model.safetensors", "size": 9, "blobId": "{}",
                      "lfs": {{"sha256": "{}", "size": 9000000000, "pointerSize": 134}}}})",
                        kSha1, kSha256) +
            R"(,{"rfilename": "tokenizer.json"})");
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  EXPECT_EQ(listing->commit, kCommit);
  const HubBlob config = listing->Find("config.json")->blob.value();
  EXPECT_EQ(config.etag, kSha1);
  EXPECT_EQ(config.bytes, 3);
  EXPECT_EQ(config.digest, BlobDigest::kGitSha1);
  const HubBlob weights = listing->Find("model.safetensors")->blob.value();
  EXPECT_EQ(weights.etag, kSha256);
  EXPECT_EQ(weights.bytes, 9'000'000'000);
  EXPECT_EQ(weights.digest, BlobDigest::kSha256);
  EXPECT_FALSE(listing->Find("tokenizer.json")->blob);
  EXPECT_EQ(listing->Find("other"), nullptr);
}

TEST(HubListing, LeavesOutWhatIsInFolders) {
  const auto listing =
      Parse(Entry("onnx/model.onnx") + "," + Entry("../../x") + "," + Entry("/etc/passwd") + "," +
            Entry("..") + "," + Entry("a\\u0000b") + "," + Entry("config.json"));
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  ASSERT_EQ(listing->files.size(), 1u);
  EXPECT_EQ(listing->files[0].name, "config.json");
}

TEST(HubListing, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", "{}", R"({"sha": "main", "siblings": []})", R"({"sha": 5})",
                           "{\"sha\": \"\xff\"}"}) {
    EXPECT_EQ(ParseHubListing(text).status().code(), StatusCode::kDataLoss) << text;
  }
  EXPECT_FALSE(ParseHubListing(fmt::format(R"({{"sha": "{}"}})", kCommit)).ok());
  EXPECT_FALSE(Parse("5").ok());
  EXPECT_FALSE(Parse(Entry("a", "-1")).ok());
  EXPECT_FALSE(Parse(Entry("a", "18446744073709551615")).ok());
  EXPECT_FALSE(Parse(Entry("a", "1099511627777")).ok());
  EXPECT_FALSE(Parse(R"({"rfilename": "a", "size": 1, "blobId": "../../x"})").ok());
  EXPECT_FALSE(Parse(R"({"rfilename": "a", "lfs": {"size": 1, "sha256": "12"}})").ok());
}

TEST(HubListing, HasALimitOfFiles) {
  std::string many;
  for (size_t i = 0; i <= kListingFilesMax; ++i)
    many += (i == 0 ? "" : ",") + Entry(fmt::format("f{}", i));
  const Status status = Parse(many).status();
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_NE(status.message().find("20001 files"), std::string::npos) << status.message();
}

TEST(HubListing, AModelHasAConfigurationAndSafetensors) {
  const auto check = [](const std::string& siblings) {
    return CheckHubListing(Parse(siblings).value(), "org/name").message();
  };
  EXPECT_EQ(check(Entry("config.json") + "," + Entry("model.safetensors")), "");
  EXPECT_EQ(check(Entry("config.json") + "," + Entry("model.safetensors.index.json")), "");
  EXPECT_NE(check(Entry("model.safetensors")).find("no config.json"), std::string::npos);
  EXPECT_NE(check(Entry("config.json") + "," + Entry("pytorch_model.bin")).find("*.bin only"),
            std::string::npos);
  EXPECT_NE(check(Entry("config.json")).find("neither model.safetensors nor"), std::string::npos);
}

TEST(HubListing, SmallFilesBeginWithTheConfiguration) {
  const auto listing = Parse(Entry("tokenizer.json") + "," + Entry("README.md") + "," +
                             Entry("config.json") + "," + Entry("model.safetensors.index.json"));
  EXPECT_EQ(SmallFilesOf(*listing), (std::vector<std::string>{"config.json", "tokenizer.json",
                                                              "model.safetensors.index.json"}));
}

TEST(HubListing, NamedChatTemplatesAreSmallFiles) {
  const auto listing =
      Parse(Entry("config.json") + "," + Entry("model.safetensors") + "," +
            Entry("chat_template.jinja") + "," + Entry("additional_chat_templates/tool_use.jinja") +
            "," + Entry("additional_chat_templates/README.md") + "," +
            Entry("additional_chat_templates/../config.jinja") + "," +
            Entry("additional_chat_templates/a/b.jinja") + "," + Entry("other/tool_use.jinja"));
  EXPECT_EQ(SmallFilesOf(*listing),
            (std::vector<std::string>{"config.json", "chat_template.jinja",
                                      "additional_chat_templates/tool_use.jinja"}));
}

}  // namespace
}  // namespace millrace::ops
