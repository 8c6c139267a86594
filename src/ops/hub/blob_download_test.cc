// Downloads from a hub, over the loopback interface, that never come to an end.
#include "ops/hub/blob_download.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/sha256.h"
#include "base/testing/temp_folder.h"
#include "net/http/http_server.h"

namespace millrace::ops {
namespace {

constexpr size_t kFileBytes = 8u << 20;

// A hub that sends `part` bytes of an answer and then breaks it off. Asked to go on, it claims that
// the file is another one by now, or goes on.
class FakeHub {
 public:
  FakeHub(size_t part, bool other) : content_(kFileBytes, 'w') {
    net::HttpServerOptions options;
    options.unread_bytes_max = 2 * kFileBytes;
    auto server = net::HttpServer::Start(
        options, [this, part, other](net::HttpRequest request, std::shared_ptr<net::HttpReply> r) {
          ++calls_;
          const auto range = request.Header("range");
          const size_t begin = range ? std::stoul(std::string(range->substr(6))) : 0;
          net::HttpResponse head{.status = range ? 206 : 200, .headers = {}, .body = ""};
          if (range) {
            head.headers.emplace_back(
                "content-range", fmt::format("bytes {}-{}/{}", begin, kFileBytes - 1, kFileBytes));
            if (other) head.headers.emplace_back("etag", "\"another\"");
          }
          r->Start(std::move(head));
          const size_t end = std::min(kFileBytes, begin + part);
          for (size_t at = begin; at < end; at += kPieceBytes) {
            if (!r->Write(content_.substr(at, std::min(kPieceBytes, end - at)))) break;
          }
          if (end == kFileBytes) r->End();
        });
    MR_CHECK(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }

  Status Download(const std::string& folder) {
    HubAccess access;
    access.endpoint = *net::ParseUrl(fmt::format("http://127.0.0.1:{}", server_->port()));
    auto client = HubClient::Create(std::move(access));
    MR_CHECK(client.ok()) << client.status().ToString();
    const HubBlob blob{Hex(Sha256Of(content_)), kFileBytes, BlobDigest::kSha256};
    RetryPolicy policy;
    policy.sleep = [](Duration) {};
    return DownloadBlob(**client, {"/org/name/resolve/main/big", "org/name, big"}, blob,
                        {folder + "/blob", folder + "/lock"}, policy, [](int64_t) {});
  }
  int calls() const { return calls_; }

 private:
  static constexpr size_t kPieceBytes = 64 * 1024;
  const std::string content_;
  std::atomic<int> calls_ = 0;
  std::unique_ptr<net::HttpServer> server_;
};

TEST(BlobDownload, GoesOnAsLongAsItComesNearerToTheEnd) {
  const TempFolder folder;
  FakeHub hub(1u << 20, /*other=*/false);
  const Status done = hub.Download(folder.path());
  EXPECT_TRUE(done.ok()) << done.ToString();
  EXPECT_EQ(hub.calls(), 8);
}

TEST(BlobDownload, EndsWhenItBeginsAnewAgainAndAgain) {
  const TempFolder folder;
  FakeHub hub(kFileBytes / 2, /*other=*/true);
  const Status ended = hub.Download(folder.path());
  EXPECT_EQ(ended.code(), StatusCode::kUnavailable);
  EXPECT_LE(hub.calls(), 10);
  EXPECT_NE(ended.message().find("127.0.0.1"), std::string::npos) << ended.message();
  EXPECT_NE(ended.message().find("org/name, big"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace millrace::ops
