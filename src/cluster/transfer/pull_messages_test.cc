#include "cluster/transfer/pull_messages.h"

#include <gtest/gtest.h>

#include <functional>

#include "cluster/transfer/pull.pb.h"
#include "wire/testing/same.h"

namespace millrace::cluster {
namespace {

using Ask = WeightRequest::Ask;

std::string Refusal(const proto::PullRequest& request) {
  const std::string bytes = request.SerializeAsString();
  const auto read = DecodePullRequest(std::as_bytes(std::span(bytes)));
  EXPECT_FALSE(read.ok());
  return read.status().message();
}

TEST(PullMessages, EveryFieldRoundTrips) {
  KvRequest kv{{PipelineId(7), 9}, stage::KvBox{{1, 4}, 2, 6, 16, 300}};
  kv.handle.nonce.fill(5);
  const KvRequest activations{kv.handle, stage::ActivationRange{4, 16, 300}};
  const WeightRequest range{Ask::kRange, std::string(64, 'a'), {3, 1 << 20, 2 << 20}};
  for (const PullRequest& request :
       {PullRequest(kv), PullRequest(activations), PullRequest(WeightRequest{}), PullRequest(range),
        PullRequest(ProbeRequest{kProbeBytesMax})}) {
    const auto read = DecodePullRequest(Encode(request));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_TRUE(wire::testing::Same(*read, request));
  }
  const WeightList list{
      std::string(64, 'f'), std::string(64, 'e'), {{"config.json", 9}, {"model.safetensors", 90}}};
  const std::string bytes = Encode(list);
  const auto read = DecodeWeightList(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_TRUE(wire::testing::Same(*read, list));
}

TEST(PullMessages, AnotherVersionIsRefusedWithBothVersionsAndTheCure) {
  proto::PullRequest request;
  request.set_version(kPullVersion + 1);
  EXPECT_EQ(Refusal(request),
            "the pull request has format version 2, this worker reads version 1; run the same "
            "release on every machine");
  proto::WeightList list;
  const std::string bytes = list.SerializeAsString();
  EXPECT_EQ(DecodeWeightList(std::as_bytes(std::span(bytes))).status().code(),
            StatusCode::kUnimplemented);
}

TEST(PullMessages, MalformedRequestsAreRefusedWithTheReason) {
  proto::PullRequest good;
  good.set_version(kPullVersion);
  EXPECT_EQ(Refusal(good), "malformed pull request: it asks for nothing that this worker knows");
  proto::KvRequest& kv = *good.mutable_kv();
  kv.mutable_handle()->set_nonce(std::string(16, 'n'));
  kv.set_end_layer(2);
  kv.set_end_head(2);
  kv.set_end_token(2);
  const std::string bytes = good.SerializeAsString();
  EXPECT_TRUE(DecodePullRequest(std::as_bytes(std::span(bytes))).ok());
  const auto refusal = [&good](const std::function<void(proto::PullRequest&)>& spoil) {
    proto::PullRequest bad = good;
    spoil(bad);
    return Refusal(bad);
  };
  EXPECT_EQ(refusal([](auto& bad) { bad.mutable_kv()->clear_handle(); }),
            "malformed pull request: KV: handle: nonce must have 16 bytes, got 0");
  EXPECT_EQ(refusal([](auto& bad) { bad.mutable_kv()->set_first_head(1u << 31); }),
            "malformed pull request: KV: first_head must be in [0, 2147483647], got 2147483648");
  for (const auto& spoil : std::initializer_list<std::function<void(proto::KvRequest&)>>{
           [](auto& bad) { bad.set_end_token(0); }, [](auto& bad) { bad.set_end_head(0); },
           [](auto& bad) { bad.set_first_layer(3); },
           [](auto& bad) { bad.set_first_layer(2); }}) {  // activations have no heads
    EXPECT_NE(refusal([&](auto& bad) { spoil(*bad.mutable_kv()); }).find("are no box"),
              std::string::npos);
  }
  const auto weights = [&](uint32_t ask, size_t digits, uint64_t begin, uint64_t end) {
    return refusal([&](auto& bad) {
      bad.mutable_weights()->set_ask(ask);
      bad.mutable_weights()->set_layout(std::string(digits, 'a'));
      bad.mutable_weights()->set_begin(begin);
      bad.mutable_weights()->set_end(end);
    });
  };
  EXPECT_EQ(weights(4, 64, 0, 1), "malformed pull request: weights: ask must be in [1, 3], got 4");
  EXPECT_EQ(weights(2, 63, 0, 1),
            "malformed pull request: weights: layout must have 64 digits, got 63 bytes");
  EXPECT_EQ(weights(2, 64, 8, 8),
            "malformed pull request: weights: bytes [8, 8), the limit is 1048576");
  EXPECT_EQ(weights(3, 64, 0, kWeightPartBytes + 1),
            "malformed pull request: weights: bytes [0, 1048577), the limit is 1048576");
  const std::vector<std::byte> garbage(kPullRequestBytesMax + 1);
  EXPECT_EQ(DecodePullRequest(garbage).status().message(), "513 bytes that are not a pull request");
}

}  // namespace
}  // namespace millrace::cluster
