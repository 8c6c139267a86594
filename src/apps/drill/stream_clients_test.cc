#include "apps/drill/stream_clients.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "base/json.h"
#include "net/http/http_server.h"

namespace millrace::apps {
namespace {

constexpr int kPieces = 10;

// A server whose streams of ten pieces break off after `pieces_at_once`, with or without an error
// event, and go on where Last-Event-ID says. With `defect`, a resumed stream repeats an event.
class BreakingServer {
 public:
  explicit BreakingServer(int pieces_at_once, bool defect = false, int status = 200)
      : pieces_at_once_(pieces_at_once), defect_(defect), status_(status) {
    auto started = net::HttpServer::Start(
        {}, [this](const net::HttpRequest& request, const std::shared_ptr<net::HttpReply>& reply) {
          Answer(request, *reply);
        });
    MR_CHECK(started.ok());
    server_ = std::move(*started);
  }
  net::Url url() const { return {.host = "127.0.0.1", .port = server_->port()}; }

 private:
  void Answer(const net::HttpRequest& request, net::HttpReply& reply) const {
    if (status_ != 200) return reply.Send({.status = status_, .headers = {}, .body = "no"});
    const auto after = request.Header("Last-Event-ID");
    int next = 0;
    if (after) next = std::stoi(std::string(after->substr(after->find(':') + 1)));
    if (after && defect_) --next;
    reply.Start({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = ""});
    for (int sent = 0; sent < pieces_at_once_ && next < kPieces; ++sent, ++next) {
      const Json event = {{"choices", {{{"text", fmt::format("{} ", next)}}}},
                          {"usage", {{"completion_tokens", next + 1}}}};
      reply.Write(fmt::format("id: r:{}\ndata: {}\n\n", next + 1, event.dump()));
    }
    if (next == kPieces) {
      reply.Write(fmt::format("id: r:{}\ndata: [DONE]\n\n", next + 1));
    } else if (next % 2 == 0) {
      reply.Write("data: {\"error\": {\"message\": \"the controller has gone\"}}\n\n");
    }
    reply.End();
  }

  const int pieces_at_once_;
  const bool defect_;
  const int status_;
  std::unique_ptr<net::HttpServer> server_;
};

std::vector<DrillAnswer> AnswersOf(const net::Url& url, int clients, int rounds,
                                   Duration patience = Duration::Seconds(60)) {
  const SteadyClock clock;
  auto http = net::HttpClient::Start({});
  MR_CHECK(http.ok());
  StreamClients asking(**http, {.server = url, .rounds = rounds, .patience = patience},
                       DrillRequests(clients, kPieces), clock, clock.Now());
  asking.Start();
  return asking.Wait();
}

const std::string kWholeText = "0 1 2 3 4 5 6 7 8 9 ";

TEST(StreamClients, EachAsksInTurn) {
  const BreakingServer server(kPieces);
  std::map<std::pair<int, size_t>, int> asked;
  for (const DrillAnswer& answer : AnswersOf(server.url(), 3, 4)) {
    EXPECT_EQ(answer.text, kWholeText);
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer.connections, 1);
    EXPECT_EQ(answer.tokens, kPieces);
    EXPECT_EQ(answer.pieces_s.size(), size_t{kPieces});
    ++asked[{answer.client, answer.request}];
  }
  EXPECT_EQ(asked.size(), 9u) << "every client has asked for everything";
}

TEST(StreamClients, ResumesWhatBreaksOff) {
  for (const int at_once : {1, 3, 9}) {
    const BreakingServer server(at_once);
    for (const DrillAnswer& answer : AnswersOf(server.url(), 2, 1)) {
      EXPECT_EQ(answer.text, kWholeText) << at_once;
      EXPECT_EQ(answer.error, "");
      EXPECT_GT(answer.connections, 1);
    }
  }
}

// What a drill is for: a server that repeats a token is found out.
TEST(StreamClients, ARepeatedTokenIsNoticed) {
  const BreakingServer server(4, true);
  const auto answers = AnswersOf(server.url(), 1, 1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].error, "");
  EXPECT_EQ(Compare(answers[0], {kWholeText}), AnswerVerdict::kDifferent) << answers[0].text;
}

TEST(StreamClients, ARefusalIsALostAnswer) {
  const BreakingServer server(kPieces, false, 404);
  const auto answers = AnswersOf(server.url(), 1, 1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].error, "HTTP 404: no");
}

TEST(StreamClients, NobodyThereForTooLongIsALostAnswer) {
  net::Url nobody;
  {
    const BreakingServer server(kPieces);
    nobody = server.url();
  }
  const auto answers = AnswersOf(nobody, 2, 1, Duration::Millis(200));
  ASSERT_EQ(answers.size(), 2u);
  for (const DrillAnswer& answer : answers) EXPECT_NE(answer.error, "");
}

}  // namespace
}  // namespace millrace::apps
