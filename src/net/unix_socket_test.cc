// Unix sockets: the file's mode, files that are left over or in use, HTTP over them.
#include "net/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "net/http/http_client.h"
#include "net/http/http_server.h"

namespace millrace::net {
namespace {

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "unix-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path() const { return folder_ / "a.sock"; }
  static mode_t ModeOf(const std::string& path) {
    struct stat found = {};
    return lstat(path.c_str(), &found) == 0 ? found.st_mode : 0;
  }

  std::filesystem::path folder_;
};

TEST_F(UnixSocketTest, OnlyTheOwnerMayUseTheFileWithAnyUmask) {
  for (const mode_t mask : {0u, 077u, 0777u}) {
    const mode_t before = umask(mask);
    auto listener = ListenOnUnixSocket(Path());
    umask(before);
    ASSERT_TRUE(listener.ok()) << listener.status().ToString();
    EXPECT_EQ(ModeOf(Path()), static_cast<mode_t>(S_IFSOCK | 0600)) << mask;
    EXPECT_TRUE(ConnectUnixSocket(Path()).ok());
    listener->file.Remove();
    EXPECT_EQ(ModeOf(Path()), 0u);
  }
}

TEST_F(UnixSocketTest, TheFileOfAnEndedProcessIsReplaced) {
  { ASSERT_TRUE(ListenOnUnixSocket(Path()).ok()); }  // closed, but its file stays
  EXPECT_TRUE(S_ISSOCK(ModeOf(Path())));
  const Status gone = ConnectUnixSocket(Path()).status();
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_EQ(gone.message(),
            "nothing is listening on " + Path() + ": the process that created it has ended");
  auto next = ListenOnUnixSocket(Path());
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_TRUE(ConnectUnixSocket(Path()).ok());
}

TEST_F(UnixSocketTest, TheFileOfARunningProcessIsKept) {
  auto first = ListenOnUnixSocket(Path());
  ASSERT_TRUE(first.ok());
  const Status second = ListenOnUnixSocket(Path()).status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.message(), "another process is already listening on " + Path());
  EXPECT_TRUE(ConnectUnixSocket(Path()).ok());
}

TEST_F(UnixSocketTest, OnlySocketsAreReplaced) {
  std::ofstream(Path()) << "precious";
  const Status refused = ListenOnUnixSocket(Path()).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            Path() + " is needed for a unix socket, but is not a socket; remove it");
  std::string text;
  std::ifstream(Path()) >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(UnixSocketTest, OnlyItsOwnFileIsRemoved) {
  UnixSocketFile old;
  {
    auto first = ListenOnUnixSocket(Path());
    ASSERT_TRUE(first.ok());
    old = first->file;
  }
  std::filesystem::rename(Path(), Path() + ".old");  // keeps its inode from being reused
  auto second = ListenOnUnixSocket(Path());
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(old.IsThere());
  EXPECT_TRUE(second->file.IsThere());
  old.Remove();
  EXPECT_TRUE(ConnectUnixSocket(Path()).ok());
  second->file.Remove();
  second->file.Remove();
  EXPECT_EQ(ConnectUnixSocket(Path()).status().code(), StatusCode::kNotFound);
}

TEST_F(UnixSocketTest, PathsThatAreTooLongAreErrors) {
  const std::string path = folder_ / std::string(kUnixPathBytesMax, 'x');
  for (const Status& status :
       {ListenOnUnixSocket(path).status(), ConnectUnixSocket(path).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("may have 1 to 107 bytes"), std::string::npos);
    EXPECT_NE(status.message().find("choose a shorter path"), std::string::npos);
  }
  const size_t room = kUnixPathBytesMax - folder_.string().size() - 1;
  EXPECT_TRUE(ListenOnUnixSocket(folder_ / std::string(room, 'y')).ok());
}

TEST_F(UnixSocketTest, CarriesHttp) {
  HttpServerOptions options;
  options.unix_path = Path();
  auto server =
      HttpServer::Start(options, [](HttpRequest request, std::shared_ptr<HttpReply> reply) {
        const std::string host(*request.Header("host"));
        reply->Send({200, {}, request.peer + "|" + host + "|" + request.path + "|" + request.body});
      });
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_EQ((*server)->port(), 0);
  EXPECT_EQ((*server)->socket_file().path(), Path());
  auto client = HttpClient::Start({});
  ASSERT_TRUE(client.ok());
  HttpCall call{"POST", *ParseUrl("http://somewhere:81/a"), {}, std::string(1 << 20, 'b'), Path()};
  const std::string peer =
      "process " + std::to_string(getpid()) + " of user " + std::to_string(geteuid());
  for (int i = 0; i < 3; ++i) {
    auto response = (*client)->Call(call);
    ASSERT_TRUE(response.ok()) << response.status().ToString();
    EXPECT_EQ(response->body, peer + "|somewhere:81|/a|" + call.body);
  }
  EXPECT_EQ((*server)->connections(), 1u) << "the connection is reused";
  (*server)->Stop(Duration{});
  EXPECT_EQ(ModeOf(Path()), 0u) << "the server removes its file";
  EXPECT_EQ((*client)->Call(call).status().code(), StatusCode::kUnavailable);
}

TEST_F(UnixSocketTest, HasNoTls) {
  HttpServerOptions options;
  options.unix_path = Path();
  options.tls_certificate_path = options.tls_key_path = "some.pem";
  EXPECT_EQ(
      HttpServer::Start(options, [](HttpRequest, std::shared_ptr<HttpReply>) {}).status().message(),
      "TLS is not supported on a unix socket");
}

}  // namespace
}  // namespace millrace::net
