#include "net/http/http1.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace millrace::net {
namespace {

HttpLimits SmallLimits() {
  HttpLimits limits;
  limits.head_bytes_max = 1024;
  limits.target_bytes_max = 256;
  limits.headers_max = 10;
  limits.body_bytes_max = 1000;
  return limits;
}

// The outcome of a stream of requests on one connection.
struct Outcome {
  std::vector<std::string> requests;  // "METHOD path body"
  int failure = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Plays a connection that gets `stream` in pieces of at most `piece_bytes_max`.
Outcome Play(std::string_view stream, size_t piece_bytes_max, Rng rng = Rng(1)) {
  Outcome outcome;
  std::string in;
  auto parser = std::make_unique<RequestParser>(SmallLimits());
  while (true) {
    const size_t used = parser->Feed(in);
    EXPECT_LE(used, in.size());
    in.erase(0, used);
    if (parser->stage() == HttpStage::kFailed) {
      outcome.failure = parser->failure().status;
      return outcome;
    }
    if (parser->stage() == HttpStage::kDone) {
      const HttpRequest request = parser->TakeRequest();
      outcome.requests.push_back(request.method + " " + request.path + " " + request.body);
      parser = std::make_unique<RequestParser>(SmallLimits());
      continue;
    }
    if (used > 0 && !in.empty()) continue;
    if (stream.empty()) return outcome;
    const auto n = static_cast<size_t>(rng.Between(1, static_cast<int64_t>(piece_bytes_max)));
    in += stream.substr(0, n);
    stream.remove_prefix(std::min(n, stream.size()));
  }
}

constexpr std::string_view kHost = "Host: t\r\n";

std::string Request(std::string_view line, std::string_view rest) {
  return std::string(line) + "\r\n" + std::string(kHost) + std::string(rest);
}

struct Case {
  const char* rule;
  std::string bytes;
  int failure;                        // 0: accepted
  std::vector<std::string> requests;  // parsed before the failure
};

std::vector<Case> Manifest() {
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n";
  return {
      {"plain", Request("GET /a HTTP/1.1", "\r\n"), 0, {"GET /a "}},
      {"body", Request("POST / HTTP/1.1", "Content-Length: 2\r\n\r\nhi"), 0, {"POST / hi"}},
      {"chunks",
       Request("POST / HTTP/1.1", chunked + "1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n"),
       0,
       {"POST / abc"}},
      {"trailers are dropped",
       Request("POST / HTTP/1.1", chunked + "0\r\nX: 5\r\n\r\n"),
       0,
       {"POST / "}},
      {"empty chunked body",
       Request("POST / HTTP/1.1", chunked + "0\r\n\r\n") + Request("GET /2 HTTP/1.1", "\r\n"),
       0,
       {"POST / ", "GET /2 "}},
      {"last chunk of many zeros",
       Request("POST / HTTP/1.1", chunked + "4\r\n0\r\n\r\r\n000\r\n\r\n"),
       0,
       {"POST / 0\r\n\r"}},
      {"length in the trailers",
       Request("POST / HTTP/1.1", chunked + "0\r\nContent-Length: 5\r\n\r\n"),
       400,
       {}},
      {"two in one",
       Request("GET /1 HTTP/1.1", "\r\n") + Request("GET /2 HTTP/1.1", "\r\n"),
       0,
       {"GET /1 ", "GET /2 "}},
      {"empty line first", "\r\n" + Request("GET / HTTP/1.1", "\r\n"), 0, {"GET / "}},
      {"three empty lines", "\r\n\r\n\r\n" + Request("GET / HTTP/1.1", "\r\n"), 400, {}},
      {"absolute form", Request("GET http://x/y HTTP/1.1", "\r\n"), 0, {"GET /y "}},
      {"1.0 without Host", "GET / HTTP/1.0\r\n\r\n", 0, {"GET / "}},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", 400, {}},
      {"two Hosts", Request("GET / HTTP/1.1", "Host: u\r\n\r\n"), 400, {}},
      {"both lengths",
       Request("POST / HTTP/1.1", "Content-Length: 3\r\n" + chunked + "0\r\n\r\n"),
       400,
       {}},
      {"both lengths, other order",
       Request("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc"),
       400,
       {}},
      {"two equal lengths",
       Request("POST / HTTP/1.1", "Content-Length: 1\r\nContent-Length: 1\r\n\r\na"),
       400,
       {}},
      {"length list", Request("POST / HTTP/1.1", "Content-Length: 1, 1\r\n\r\na"), 400, {}},
      {"length +1", Request("POST / HTTP/1.1", "Content-Length: +1\r\n\r\na"), 400, {}},
      {"length -1", Request("POST / HTTP/1.1", "Content-Length: -1\r\n\r\na"), 400, {}},
      {"length 2^64",
       Request("POST / HTTP/1.1", "Content-Length: 18446744073709551616\r\n\r\na"),
       400,
       {}},
      {"length 0x1", Request("POST / HTTP/1.1", "Content-Length: 0x1\r\n\r\na"), 400, {}},
      {"empty length", Request("POST / HTTP/1.1", "Content-Length:\r\n\r\na"), 400, {}},
      {"coding gzip", Request("POST / HTTP/1.1", "Transfer-Encoding: gzip\r\n\r\n"), 501, {}},
      {"coding list",
       Request("POST / HTTP/1.1", "Transfer-Encoding: gzip, chunked\r\n\r\n"),
       501,
       {}},
      {"coding twice",
       Request("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\n" + chunked),
       400,
       {}},
      {"coding in 1.0", Request("POST / HTTP/1.0", chunked + "0\r\n\r\n"), 400, {}},
      {"space before colon", Request("GET / HTTP/1.1", "A : b\r\n\r\n"), 400, {}},
      {"folded line", Request("GET / HTTP/1.1", "A: b\r\n c\r\n\r\n"), 400, {}},
      {"bare LF", "GET / HTTP/1.1\nHost: t\n\n", 400, {}},
      {"bare LF later", "GET / HTTP/1.1\r\nHost: t\n\r\n", 400, {}},
      {"bare CR", Request("GET / HTTP/1.1", "A: b\rc\r\n\r\n"), 400, {}},
      {"NUL", Request("GET / HTTP/1.1", std::string("A: \0\r\n\r\n", 8)), 400, {}},
      {"no name", Request("GET / HTTP/1.1", ": b\r\n\r\n"), 400, {}},
      {"no colon", Request("GET / HTTP/1.1", "abc\r\n\r\n"), 400, {}},
      {"TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00", 7), 400, {}},
      {"SSH", "SSH-2.0-OpenSSH_9.2\r\n", 400, {}},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, {}},
      {"HTTP/0.9", "GET /\r\n", 400, {}},
      {"HTTP/3.0", Request("GET / HTTP/3.0", "\r\n"), 505, {}},
      {"lower-case http", Request("GET / http/1.1", "\r\n"), 400, {}},
      {"raw UTF-8 target", Request("GET /\xc3\xa9 HTTP/1.1", "\r\n"), 400, {}},
      {"target with space", Request("GET /a b HTTP/1.1", "\r\n"), 400, {}},
      {"NUL in path", Request("GET /%00 HTTP/1.1", "\r\n"), 400, {}},
      {"long target", Request("GET /" + std::string(256, 'x') + " HTTP/1.1", "\r\n"), 414, {}},
      {"endless target", "GET /" + std::string(700, 'x'), 414, {}},
      {"long header", Request("GET / HTTP/1.1", "A: " + std::string(2000, 'x')), 431, {}},
      {"many headers",
       Request("GET / HTTP/1.1",
               "A:b\r\nA:b\r\nA:b\r\nA:b\r\nA:b\r\nA:b\r\n"
               "A:b\r\nA:b\r\nA:b\r\nA:b\r\n\r\n"),
       431,
       {}},
      {"large length",
       Request("POST / HTTP/1.1", "Content-Length: 1000000000000\r\n\r\n"),
       413,
       {}},
      {"large chunk", Request("POST / HTTP/1.1", chunked + "3e9\r\n"), 413, {}},
      {"chunks beyond the limit",
       Request("POST / HTTP/1.1", chunked + "3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\n"),
       413,
       {}},
      {"chunk size not hex", Request("POST / HTTP/1.1", chunked + "g\r\n"), 400, {}},
      {"chunk size of 17 digits",
       Request("POST / HTTP/1.1", chunked + "10000000000000001\r\nx"),
       400,
       {}},
      {"chunk without CRLF", Request("POST / HTTP/1.1", chunked + "1\r\nabc\r\n"), 400, {}},
      {"chunk line without CR never ends",
       Request("POST / HTTP/1.1", chunked + "1\na\n0\n\n"),
       0,
       {}},
      {"endless chunk extension",
       Request("POST / HTTP/1.1", chunked + "1;" + std::string(2 * kChunkLineBytesMax, 'x')),
       400,
       {}},
      {"endless trailers",
       Request("POST / HTTP/1.1", chunked + "0\r\nA: " + std::string(2 * kChunkLineBytesMax, 'x')),
       400,
       {}},
      {"Expect other",
       Request("POST / HTTP/1.1", "Expect: 200-ok\r\nContent-Length: 1\r\n\r\na"),
       417,
       {}},
      {"Upgrade is ignored",
       Request("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
       0,
       {"GET / "}},
      {"TRACE", Request("TRACE / HTTP/1.1", "\r\n"), 405, {}},
      {"CONNECT", Request("CONNECT h:1 HTTP/1.1", "\r\n"), 405, {}},
      {"good then bad", Request("GET /1 HTTP/1.1", "\r\n") + "\x01", 400, {"GET /1 "}},
  };
}

TEST(RequestParser, HandlesTheManifestAsListed) {
  for (const Case& c : Manifest()) {
    const Outcome expected{c.requests, c.failure};
    const Outcome whole = Play(c.bytes, c.bytes.size());
    EXPECT_EQ(whole.failure, expected.failure) << c.rule;
    EXPECT_EQ(whole.requests, expected.requests) << c.rule;
  }
}

TEST(RequestParser, PiecesDoNotMatter) {
  for (const Case& c : Manifest()) {
    const Outcome expected{c.requests, c.failure};
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const size_t piece_bytes = seed == 0 ? 1 : 20;
      EXPECT_EQ(Play(c.bytes, piece_bytes, Rng(seed)), expected) << c.rule << " seed " << seed;
    }
  }
}

// Random damage to a valid stream does not crash the parser, and pieces give the same as the whole.
TEST(RequestParser, DamagedStreamsMeanTheSameInPieces) {
  const std::string good =
      Request("POST /x HTTP/1.1", "Content-Length: 3\r\n\r\nabc") +
      Request("POST /y HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
  const std::string_view bytes = std::string_view("\r\n :\0;a0\x80/%", 11);
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    std::string stream = good;
    for (int64_t n = rng.Between(1, 3); n > 0; --n) {
      stream[rng.Between(0, stream.size() - 1)] = bytes[rng.Between(0, bytes.size() - 1)];
    }
    EXPECT_EQ(Play(stream, 7, Rng(seed)), Play(stream, stream.size())) << seed;
  }
}

TEST(RequestParser, ManySmallChunksAreJoined) {
  HttpLimits limits;
  RequestParser parser(limits);
  std::string in = Request("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 100'000; ++i) {
    in += "1\r\nx\r\n";
    in.erase(0, parser.Feed(in));
  }
  in += "0\r\n\r\n";
  EXPECT_EQ(parser.Feed(in), in.size());
  ASSERT_EQ(parser.stage(), HttpStage::kDone);
  EXPECT_EQ(parser.TakeRequest().body, std::string(100'000, 'x'));
}

TEST(ResponseHead, HasNoFramingWhereThereIsNoBody) {
  const std::string head =
      FormatResponseHead(204, {{"A", "b"}}, BodyFraming::kContentLength, 0, true);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 204 No Content\r\nServer: millrace\r\nDate: "));
  EXPECT_TRUE(head.ends_with(" GMT\r\nA: b\r\nConnection: keep-alive\r\n\r\n")) << head;
}

}  // namespace
}  // namespace millrace::net
