#include "net/tls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "base/file.h"
#include "net/http/http_client.h"
#include "net/http/http_server.h"
#include "net/testing/raw_client.h"
#include "net/testing/test_certificate.h"

namespace millrace::net {
namespace {

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    char name[] = "/tmp/millrace_tls_XXXXXX";
    MR_CHECK(mkdtemp(name) != nullptr);
    folder_ = name;
    const TestCertificate pair = MakeTestCertificate();
    options_.tls_certificate_path = Write("cert.pem", pair.certificate_pem);
    options_.tls_key_path = Write("key.pem", pair.key_pem);
  }
  ~TlsTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    MR_CHECK(WriteFileAtomically(path, content).ok());
    return path;
  }
  void Start(HttpHandler handler) {
    auto server = HttpServer::Start(options_, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
  }
  std::unique_ptr<HttpClient> Client(bool trusted) {
    HttpClientOptions options;
    if (trusted) options.tls_authority_path = options_.tls_certificate_path;
    auto client = HttpClient::Start(options);
    MR_CHECK(client.ok()) << client.status().ToString();
    return std::move(client).value();
  }
  Url ServerUrl() const { return *ParseUrl(fmt::format("https://127.0.0.1:{}/", server_->port())); }
  std::string ErrorWith(const std::string& certificate, const std::string& key) const {
    const auto context = LoadServerTls(certificate, key);
    return context.ok() ? "no error" : context.status().message();
  }

  std::string folder_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsTest, RequestsAndLargeBodiesRoundTrip) {
  Start([](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    reply->Send({200, {}, std::move(request.body)});
  });
  auto client = Client(/*trusted=*/true);
  for (size_t size : {0, 1, 100'000, 3'000'000}) {
    std::string body(size, 'x');
    for (size_t i = 0; i < size; i += 1000) body[i] = static_cast<char>('a' + i / 1000 % 26);
    auto response = client->Call({"POST", ServerUrl(), {}, body});
    ASSERT_TRUE(response.ok()) << response.status().ToString();
    EXPECT_EQ(response->body, body);
  }
}

TEST_F(TlsTest, StreamsAndReportsDisconnects) {
  std::shared_ptr<HttpReply> held;
  std::atomic<bool> gone{false};
  Start([&](HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->OnDisconnect([&] { gone = true; });
    reply->Start({200, {}, ""});
    reply->Write("one");
    held = std::move(reply);
  });
  auto client = Client(/*trusted=*/true);
  std::atomic<int> parts{0};
  FetchCallbacks callbacks;
  callbacks.on_data = [&](std::string_view) { ++parts; };
  callbacks.on_done = [](Status) {};
  const FetchId id = client->Fetch({"GET", ServerUrl(), {}, ""}, callbacks);
  ASSERT_TRUE(Eventually([&] { return parts == 1; }));
  EXPECT_TRUE(held->Write("two"));
  ASSERT_TRUE(Eventually([&] { return parts == 2; }));
  client->Cancel(id);
  EXPECT_TRUE(Eventually([&] { return gone.load(); }));
}

TEST_F(TlsTest, ACertificateOfAnUnknownAuthorityIsRefused) {
  Start([](HttpRequest, std::shared_ptr<HttpReply> reply) { reply->Send({}); });
  auto client = Client(/*trusted=*/false);
  const Status status = client->Call({"GET", ServerUrl(), {}, ""}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("SSL certificate problem"), std::string::npos)
      << status.message();
}

TEST_F(TlsTest, PlainHttpOnATlsPortIsClosed) {
  options_.head_timeout = Duration::Millis(300);
  Start([](HttpRequest, std::shared_ptr<HttpReply> reply) { reply->Send({}); });
  RawClient plain(server_->port());
  plain.Send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(StatusOf(plain.ReadToEnd()), 0);
  EXPECT_TRUE(plain.closed());
  RawClient silent(server_->port());
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_TRUE(silent.closed());
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  Start([](HttpRequest, std::shared_ptr<HttpReply> reply) { reply->Send({}); });
  for (const auto& [version, accepted] :
       {std::pair(TLS1_1_VERSION, false), std::pair(TLS1_2_VERSION, true),
        std::pair(TLS1_3_VERSION, true)}) {
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                              SSL_CTX_free);
    SSL_CTX_set_security_level(context.get(), 0);
    SSL_CTX_set_min_proto_version(context.get(), version);
    SSL_CTX_set_max_proto_version(context.get(), version);
    RawClient raw(server_->port());
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), raw.fd());
    EXPECT_EQ(SSL_connect(ssl.get()) == 1, accepted) << version;
  }
}

TEST_F(TlsTest, CiphersWithoutForwardSecrecyOrWithCbcAreRefused) {
  Start([](HttpRequest, std::shared_ptr<HttpReply> reply) { reply->Send({}); });
  for (const auto& [ciphers, accepted] :
       {std::pair("AES128-SHA:AES128-GCM-SHA256:AES256-GCM-SHA384", false),
        std::pair("ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA", false),
        std::pair("ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384", false),
        std::pair("ECDHE+AESGCM", true), std::pair("ECDHE+CHACHA20", true)}) {
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                              SSL_CTX_free);
    SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
    ASSERT_EQ(SSL_CTX_set_cipher_list(context.get(), ciphers), 1) << ciphers;
    RawClient raw(server_->port());
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), raw.fd());
    EXPECT_EQ(SSL_connect(ssl.get()) == 1, accepted) << ciphers;
  }
}

TEST_F(TlsTest, BadFilesAreNamed) {
  const std::string& certificate = options_.tls_certificate_path;
  const std::string& key = options_.tls_key_path;
  const std::string other_key = Write("other.pem", MakeTestCertificate().key_pem);
  const std::string garbage = Write("garbage.pem", "hello");
  const std::string broken = Write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
  const std::string missing = folder_ + "/missing.pem";
  EXPECT_EQ(ErrorWith(certificate, key), "no error");
  EXPECT_EQ(
      ErrorWith(certificate, other_key),
      fmt::format("TLS key file {} does not belong to the certificate {}", other_key, certificate));
  EXPECT_NE(ErrorWith(missing, key).find(missing), std::string::npos);
  EXPECT_NE(ErrorWith(certificate, missing).find(missing), std::string::npos);
  EXPECT_EQ(ErrorWith(garbage, key),
            fmt::format("TLS certificate file {}: not in PEM format", garbage));
  EXPECT_NE(ErrorWith(broken, key).find(broken), std::string::npos);
  EXPECT_NE(ErrorWith(certificate, certificate).find("TLS key file"), std::string::npos);
  EXPECT_NE(ErrorWith(certificate, folder_).find("TLS key file"), std::string::npos);
  for (const std::string& path : {missing, garbage, broken}) {
    EXPECT_EQ(ErrorWith(path, key).find('\n'), std::string::npos);
  }
  options_.tls_key_path.clear();
  const auto server = HttpServer::Start(options_, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  EXPECT_EQ(server.status().message(),
            "TLS needs a certificate file and a key file; the key file is not given");
}

}  // namespace
}  // namespace millrace::net
