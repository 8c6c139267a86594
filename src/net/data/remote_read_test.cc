// Offers as bytes, and reads with a scripted peer, without a network.
#include "net/data/remote_read.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "net/data/crc32c.h"
#include "net/data/plane_testing.h"

namespace millrace::net {
namespace {

TEST(RemoteOffer, RoundTripsAndIsChecked) {
  RemoteOffer offer;
  offer.peer = PatternBytes(300, 1);
  offer.keys = {PatternBytes(10, 2), PatternBytes(70, 3)};
  offer.segments = {{0, 4096, 1000}, {0, 1, 0}, {1, UINT64_MAX - 5, 4}};
  const auto raw = EncodeOffer(offer);
  const auto back = DecodeOffer(raw, 1004);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->peer, offer.peer);
  EXPECT_EQ(back->keys, offer.keys);
  ASSERT_EQ(back->segments.size(), 3u);
  EXPECT_EQ(back->segments[2].address, UINT64_MAX - 5);
  EXPECT_EQ(back->segments[2].key, 1u);
  EXPECT_FALSE(DecodeOffer(raw, 1003).ok());
  EXPECT_FALSE(DecodeOffer(raw, 1005).ok());
  for (size_t n = 0; n < raw.size(); ++n) {
    EXPECT_FALSE(DecodeOffer(std::span(raw).first(n), 1004).ok()) << n;
  }
  offer.segments[0].key = 2;
  EXPECT_FALSE(DecodeOffer(EncodeOffer(offer), 1004).ok());
  offer.segments[0].key = 0;
  offer.peer.clear();
  EXPECT_FALSE(DecodeOffer(EncodeOffer(offer), 1004).ok());
}

// Reads the test's own memory on request.
class ScriptedPeer final : public RemotePeer {
 public:
  struct Asked {
    const std::byte* from;
    std::span<std::byte> to;
    RemoteSink* sink;
  };
  Result<std::unique_ptr<RemoteKey>> Key(std::span<const std::byte>) override {
    return std::make_unique<RemoteKey>();
  }
  std::optional<Status> Read(const RemoteKey&, uint64_t address, std::span<std::byte> to,
                             RemoteSink& sink) override {
    ++reads;
    largest = std::max(largest, to.size());
    const Asked one{reinterpret_cast<const std::byte*>(address), to, &sink};  // NOLINT
    if (reads == refuse_read) return Unavailable("refused");
    if (at_once) {
      Copy(one);
      return OkStatus();
    }
    asked.push_back(one);
    return std::nullopt;
  }
  static void Copy(const Asked& a) { std::copy_n(a.from, a.to.size(), a.to.begin()); }
  // Completes the reads in progress, the last one first.
  void Come() {
    for (auto now = std::exchange(asked, {}); !now.empty(); now.pop_back()) {
      Copy(now.back());
      now.back().sink->OnRead(OkStatus());
    }
  }

  bool at_once = false;
  size_t refuse_read = 0, reads = 0, largest = 0;
  std::deque<Asked> asked;
};

struct Reading {
  explicit Reading(size_t bytes, size_t segment_bytes) : want(PatternBytes(bytes, 7)), got(bytes) {
    std::vector<RemoteSegment> segments;
    for (size_t at = 0; at < bytes; at += segment_bytes) {
      const size_t n = std::min(segment_bytes, bytes - at);
      segments.push_back({0, reinterpret_cast<uint64_t>(&want[at]), n});
      segments.push_back({0, 0, 0});
    }
    RemoteRead::Keys keys;
    keys.push_back(*peer.Key({}));
    read.emplace(peer, std::move(keys), segments, bytes, [this] { ++came; });
  }
  Result<size_t> Next() {
    const auto n = read->Read(std::span(got).subspan(done));
    if (n.ok()) done += *n;
    return n;
  }

  const std::vector<std::byte> want;
  std::vector<std::byte> got;
  ScriptedPeer peer;
  std::optional<RemoteRead> read;
  size_t done = 0;
  int came = 0;
};

TEST(RemoteRead, WindowsCompleteInAnyOrderOneAheadOfTheSum) {
  for (const size_t segment : {size_t{777}, size_t{100'000}, size_t{5'000'000}}) {
    Reading r(3'300'001, segment);
    size_t under_way_max = 0;
    int rounds = 0;
    while (r.read->left() > 0) {
      ASSERT_TRUE(r.Next().ok());
      under_way_max = std::max(under_way_max, r.peer.asked.size());
      EXPECT_EQ(r.read->waiting(), !r.peer.asked.empty());
      EXPECT_TRUE(r.read->waiting() || r.read->left() == 0);  // the next is already requested
      r.peer.Come();
      EXPECT_FALSE(r.read->waiting());
      ASSERT_LT(++rounds, 100);
    }
    EXPECT_EQ(r.got, r.want);
    EXPECT_EQ(r.read->sum(), Crc32c(r.want));
    EXPECT_LE(under_way_max, 256u);
    EXPECT_LE(r.peer.largest, 1u << 20);
    EXPECT_EQ(r.came, rounds - 1);  // the last round requested nothing
  }
}

TEST(RemoteRead, AnImmediateResultIsUsedByTheNextCall) {
  Reading r(2'000'000, 300'000);
  r.peer.at_once = true;
  while (r.read->left() > 0) ASSERT_TRUE(r.Next().ok());
  EXPECT_EQ(r.got, r.want);
  EXPECT_EQ(r.read->sum(), Crc32c(r.want));
  EXPECT_EQ(r.came, 0);
}

TEST(RemoteRead, AnErrorWaitsForReadsInProgress) {
  Reading r(1'000'000, 100'000);
  r.peer.refuse_read = 4;
  ASSERT_TRUE(r.Next().ok());
  EXPECT_EQ(r.peer.asked.size(), 3u);
  EXPECT_TRUE(r.read->waiting());
  r.peer.Come();
  EXPECT_EQ(r.came, 1);
  EXPECT_EQ(r.Next().status().message(), "refused");
  EXPECT_EQ(r.done, 0u);

  Reading late(1'000'000, 100'000);  // refused after it was taken
  ASSERT_TRUE(late.Next().ok());
  for (auto& one : late.peer.asked) {
    one.sink->OnRead(&one == &late.peer.asked[2] ? Unavailable("lost") : OkStatus());
  }
  EXPECT_EQ(late.Next().status().message(), "lost");
}

}  // namespace
}  // namespace millrace::net
