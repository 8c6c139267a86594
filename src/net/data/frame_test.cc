#include "net/data/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "net/data/crc32c.h"
#include "net/data/hello.h"

namespace millrace::net {
namespace {

// Keeps every completed frame. Returns destinations of odd sizes, so that frames cross them.
class Collector : public FrameSink {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  Status OnFrameStart(const FrameHeader& header) override {
    EXPECT_LE(header.payload_bytes, kFrameBytesMax);
    payload_.assign(header.payload_bytes, std::byte{0});
    ++started;
    return OkStatus();
  }
  std::span<std::byte> PlaceFor(const FrameHeader&, size_t at) override {
    return std::span(payload_).subspan(at, std::min<size_t>(payload_.size() - at, 1000));
  }
  Status OnFrameEnd(const FrameHeader& header) override {
    frames.push_back({header, payload_});
    return OkStatus();
  }
  std::vector<Frame> frames;
  size_t started = 0;

 private:
  std::vector<std::byte> payload_;
};

std::vector<std::byte> Encode(const std::vector<Collector::Frame>& frames) {
  std::vector<std::byte> out;
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto header =
        EncodeHeader(frames[i].header, Crc32c(frames[i].payload), static_cast<uint32_t>(i));
    out.insert(out.end(), header.begin(), header.end());
    out.insert(out.end(), frames[i].payload.begin(), frames[i].payload.end());
  }
  return out;
}

std::vector<Collector::Frame> SomeFrames(Rng& rng, int count) {
  std::vector<Collector::Frame> frames(static_cast<size_t>(count));
  for (auto& f : frames) {
    const bool empty = rng.Between(0, 3) == 0;
    f.header.type = empty ? FrameType::kCredit : FrameType::kPullData;
    f.header.message_class = static_cast<MessageClass>(rng.Between(0, 2));
    f.header.small = static_cast<uint16_t>(rng.Next());
    f.header.id = rng.Next();
    f.header.value = rng.Next();
    if (!empty) f.payload.resize(static_cast<size_t>(rng.Between(0, 5000)));
    for (std::byte& b : f.payload) b = static_cast<std::byte>(rng.Next());
    f.header.payload_bytes = static_cast<uint32_t>(f.payload.size());
  }
  return frames;
}

TEST(Frame, AnyPiecesGiveTheSameFrames) {
  Rng rng(1);
  for (int round = 0; round < 50 * TestScale(); ++round) {
    const auto frames = SomeFrames(rng, 8);
    const std::vector<std::byte> bytes = Encode(frames);
    Collector collector;
    FrameDecoder decoder(collector);
    for (size_t at = 0; at < bytes.size();) {
      const auto n = std::min<size_t>(bytes.size() - at, static_cast<size_t>(rng.Between(1, 900)));
      const auto piece = std::span(bytes).subspan(at, n);
      if (rng.Between(0, 1) == 0) {
        ASSERT_TRUE(decoder.Feed(piece).ok());
        at += n;
      } else {  // written in place, as from a socket
        const auto place = decoder.Place();
        const size_t m = std::min(place.size(), n);
        std::copy_n(piece.begin(), m, place.begin());
        ASSERT_TRUE(decoder.Advance(m).ok());
        at += m;
      }
    }
    EXPECT_EQ(collector.frames, frames);
    EXPECT_EQ(decoder.frames(), frames.size());
  }
}

TEST(Frame, EveryFlippedBitIsDetectedBeforeItsFrameIsUsed) {
  Rng rng(2);
  auto frames = SomeFrames(rng, 3);
  frames[1].payload.resize(40);
  frames[1].header.type = FrameType::kPullData;
  frames[1].header.payload_bytes = 40;
  const std::vector<std::byte> good = Encode(frames);
  const size_t begin = kFrameHeaderBytes + frames[0].payload.size();
  const size_t end = begin + kFrameHeaderBytes + frames[1].payload.size();
  for (size_t bit = begin * 8; bit < end * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte(1 << (bit % 8));
    Collector collector;
    FrameDecoder decoder(collector);
    ASSERT_FALSE(decoder.Feed(bad).ok()) << bit;
    EXPECT_TRUE(decoder.corrupted());
    ASSERT_EQ(collector.frames.size(), 1u) << bit;
  }
}

TEST(Frame, RepeatedOmittedAndMovedFramesAreDetected) {
  Rng rng(3);
  const auto frames = SomeFrames(rng, 4);
  const auto bytes_of = [&](size_t i) {
    const auto header =
        EncodeHeader(frames[i].header, Crc32c(frames[i].payload), static_cast<uint32_t>(i));
    std::vector<std::byte> out(header.begin(), header.end());
    out.insert(out.end(), frames[i].payload.begin(), frames[i].payload.end());
    return out;
  };
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 0}, std::vector<size_t>{0, 2}, std::vector<size_t>{1, 0},
        std::vector<size_t>{0, 1, 0}, std::vector<size_t>{0, 1, 3}}) {
    Collector collector;
    FrameDecoder decoder(collector);
    Status status;
    for (size_t i : order) {
      if (status.ok()) status = decoder.Feed(bytes_of(i));
    }
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_LT(collector.frames.size(), order.size());
  }
}

TEST(Frame, RefusesIntactHeadersWithInvalidFields) {
  const auto feed = [](const FrameHeader& h) {
    Collector collector;
    FrameDecoder decoder(collector);
    const Status status = decoder.Feed(EncodeHeader(h, 0, 0));
    EXPECT_FALSE(decoder.corrupted());
    EXPECT_EQ(collector.started, status.ok() ? 1u : 0u);
    return status;
  };
  EXPECT_TRUE(feed({.type = FrameType::kPullData, .payload_bytes = kFrameBytesMax}).ok());
  EXPECT_FALSE(feed({.type = FrameType::kPullData, .payload_bytes = kFrameBytesMax + 1}).ok());
  EXPECT_FALSE(feed({.type = FrameType::kPullData, .payload_bytes = UINT32_MAX}).ok());
  EXPECT_FALSE(feed({.type = static_cast<FrameType>(0)}).ok());
  EXPECT_FALSE(feed({.type = static_cast<FrameType>(8)}).ok());
  EXPECT_FALSE(feed({.type = static_cast<FrameType>(13)}).ok());
  EXPECT_FALSE(feed({.message_class = static_cast<MessageClass>(3)}).ok());
  EXPECT_FALSE(feed({.type = FrameType::kCredit, .payload_bytes = 1}).ok());
}

TEST(PullHead, RoundTripsAndIgnoresTheFlagsOfWaysThatAreGone) {
  std::array<std::byte, kPullHeadBytes> raw;
  EncodePullHead({.limit_ms = 5, .direct = true}, raw);
  EXPECT_EQ(raw[4], std::byte{2});
  raw[4] = std::byte{7};  // also by address and RDMA's
  const auto head = DecodePullHead(raw);
  ASSERT_TRUE(head.ok()) << head.status().ToString();
  EXPECT_EQ(head->limit_ms, 5u);
  EXPECT_TRUE(head->direct);
  raw[4] = std::byte{8};
  EXPECT_FALSE(DecodePullHead(raw).ok());
  EXPECT_FALSE(DecodePullHead(std::span(raw).first(kPullHeadBytes - 1)).ok());
}

// ---- hello

struct Talk {
  Challenge challenge{RandomNonce(), 5};
  Answer answer{RandomNonce(), 5, {"127.0.0.1:80", 7, "host", 123}, 1000};
  Welcome welcome{{1, 2, 3}, 4, {"127.0.0.1:81", 5, "host", 124}, 1000, true, RandomNonce()};
  HelloSecret secret{"token", {}};
};

TEST(Hello, RoundTrip) {
  const Talk t;
  const auto challenge = DecodeChallenge(EncodeChallenge(t.challenge));
  ASSERT_TRUE(challenge.ok());
  EXPECT_EQ(challenge->nonce, t.challenge.nonce);
  EXPECT_EQ(challenge->incarnation, 5u);
  const auto answer =
      DecodeAnswer(EncodeAnswer(t.answer, t.challenge, t.secret), t.challenge, t.secret);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->self, t.answer.self);
  EXPECT_EQ(answer->expected_incarnation, 5u);
  EXPECT_EQ(answer->user_id, 1000u);
  const auto welcome = DecodeWelcome(EncodeWelcome(t.welcome, t.answer, t.challenge, t.secret),
                                     t.answer, t.challenge, t.secret);
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->window_bytes, t.welcome.window_bytes);
  EXPECT_EQ(welcome->self, t.welcome.self);
  EXPECT_TRUE(welcome->shares_memory);
  EXPECT_EQ(welcome->cookie, t.welcome.cookie);
}

TEST(Hello, ProofsAreForOneSessionOneTokenAndOneSide) {
  const Talk t, other;
  const HelloBytes answer = EncodeAnswer(t.answer, t.challenge, t.secret);
  EXPECT_FALSE(DecodeAnswer(answer, t.challenge, {"tokem", {}}).ok());
  EXPECT_FALSE(DecodeAnswer(answer, other.challenge, t.secret).ok()) << "a replayed answer";
  const std::vector<std::byte> binding(32, std::byte{1});
  EXPECT_FALSE(DecodeAnswer(answer, t.challenge, {"token", binding}).ok()) << "another session";
  const HelloBytes welcome = EncodeWelcome(t.welcome, t.answer, t.challenge, t.secret);
  EXPECT_FALSE(DecodeAnswer(welcome, t.challenge, t.secret).ok()) << "reflected";
  EXPECT_FALSE(DecodeWelcome(welcome, other.answer, t.challenge, t.secret).ok());
  EXPECT_FALSE(DecodeWelcome(answer, t.answer, t.challenge, t.secret).ok());
  for (size_t i = 12; i < answer.size(); ++i) {
    HelloBytes bad = answer;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(DecodeAnswer(bad, t.challenge, t.secret).ok()) << i;
  }
}

TEST(Hello, ANewerAcceptingSideIsAnsweredInAVersionOfBoth) {
  Talk t;
  t.challenge.newest = kDataProtocolVersion + 1;
  const HelloBytes bytes = EncodeChallenge(t.challenge);
  ASSERT_EQ(**HelloLength(bytes), bytes.size());
  const auto challenge = DecodeChallenge(bytes);
  ASSERT_TRUE(challenge.ok());
  EXPECT_EQ(challenge->newest, kDataProtocolVersion + 1);
  EXPECT_EQ(NewestCommonVersion(*challenge), kDataProtocolVersion);
  EXPECT_TRUE(
      DecodeAnswer(EncodeAnswer(t.answer, *challenge, t.secret), t.challenge, t.secret).ok());
}
TEST(Hello, WithoutACommonVersionBothSidesAreNamed) {
  Talk t;
  t.challenge.oldest = kDataProtocolVersion + 1;
  t.challenge.newest = kDataProtocolVersion + 2;
  const Status status = DecodeChallenge(EncodeChallenge(t.challenge)).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the other side speaks versions 6 to 7 of the data protocol, this one 5 to 5; run "
            "releases that are at most one apart on every machine");
  t.answer.version = kDataProtocolVersion + 1;  // only an accepting side may be newer
  EXPECT_FALSE(HelloLength(EncodeAnswer(t.answer, t.challenge, t.secret)).ok());
}
TEST(Hello, LengthIsCheckedAsEarlyAsPossible) {
  const Talk t;
  const HelloBytes whole = EncodeChallenge(t.challenge);
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto length = HelloLength(std::span(whole).first(n));
    ASSERT_TRUE(length.ok()) << n;
    EXPECT_FALSE(length->has_value()) << n;
  }
  EXPECT_EQ(**HelloLength(whole), whole.size());
  HelloBytes bad = whole;
  bad[0] = std::byte{'G'};
  EXPECT_FALSE(HelloLength(std::span(bad).first(1)).ok());
  bad = whole;
  bad[4] = std::byte{3};
  EXPECT_NE(HelloLength(bad).status().message().find("versions 3 to 3"), std::string::npos);
  bad = whole;
  bad[11] = std::byte{0x80};
  EXPECT_FALSE(HelloLength(bad).ok());
  bad = whole;
  bad[8] = std::byte{3};
  EXPECT_FALSE(HelloLength(bad).ok());
}

}  // namespace
}  // namespace millrace::net
