#include "ops/hub/hub_answer.h"

#include <gtest/gtest.h>

namespace millrace::ops {
namespace {

HubHead HeadOf(std::initializer_list<const char*> lines, bool from_hub = true) {
  HubHead head;
  for (const char* line : lines) TakeHubHeader(line, from_hub, head);
  return head;
}

TEST(HubAnswer, TheEtagOfAFileInStorageIsTheLinkedOne) {
  for (const HubHead& head :
       {HeadOf({"ETag: \"of-the-redirect\"", "X-Linked-ETag: \"abc\"", "X-Linked-Size: 12"}),
        HeadOf({"x-linked-etag: \"abc\"", "x-linked-size: 12", "etag: \"of-the-redirect\""})}) {
    EXPECT_EQ(head.etag, "abc");
    EXPECT_TRUE(head.linked);
    EXPECT_EQ(head.file_bytes, 12);
  }
  EXPECT_EQ(HeadOf({"ETag: W/\"0123\"\r\n"}).etag, "0123");
}

TEST(HubAnswer, StorageSaysNothingAboutTheFile) {
  const HubHead head = HeadOf({"ETag: \"md5\"", "X-Linked-Size: 5", "Content-Length: 7",
                               "X-Error-Code: GatedRepo", "Content-Range: bytes 10-16/17"},
                              /*from_hub=*/false);
  EXPECT_EQ(head.etag, "");
  EXPECT_EQ(head.error_code, "");
  EXPECT_FALSE(head.file_bytes);
  EXPECT_EQ(head.body_bytes, 7);
  EXPECT_EQ(head.begin, 10);
}

TEST(HubAnswer, NumbersThatAreNoneAreLeftOut) {
  const HubHead head = HeadOf({"Content-Length: -4", "Content-Range: bytes */17",
                               "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT", "X-Linked-Size: 1e9"});
  EXPECT_FALSE(head.body_bytes || head.begin || head.retry_after_s || head.file_bytes);
  EXPECT_EQ(HeadOf({"Retry-After: 7"}).retry_after_s, 7);
}

std::string Refusal(int status, const char* code, bool token, StatusCode expected) {
  HubHead head{.status = status, .error_code = code};
  HubAccess access;
  access.endpoint = {.https = true, .host = "hub.example", .port = 443};
  if (token) access.token = "sesame";
  const Status refusal = RefusalOf(head, {.what = "model org/name"}, access);
  EXPECT_EQ(refusal.code(), expected) << refusal.ToString();
  EXPECT_EQ(refusal.message().find("sesame"), std::string::npos);
  return refusal.message();
}

TEST(HubAnswer, RefusalsSayTheCure) {
  const auto has = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  const StatusCode forbidden = StatusCode::kUnauthenticated;
  has(Refusal(403, "GatedRepo", false, forbidden), "accept its terms");
  has(Refusal(403, "GatedRepo", false, forbidden), "set HF_TOKEN");
  has(Refusal(403, "GatedRepo", true, forbidden), "the account that did");
  has(Refusal(401, "RepoNotFound", false, forbidden), "check the name, or set HF_TOKEN");
  has(Refusal(401, "", true, forbidden), "does not let the token read");
  has(Refusal(404, "RevisionNotFound", false, StatusCode::kNotFound), "check --revision");
  has(Refusal(404, "RepoNotFound", true, StatusCode::kNotFound), "check the name");
  has(Refusal(429, "", false, StatusCode::kResourceExhausted), "429");
  has(Refusal(503, "", false, StatusCode::kUnavailable), "503");
  has(Refusal(418, "", false, StatusCode::kFailedPrecondition), "418");
}

}  // namespace
}  // namespace millrace::ops
