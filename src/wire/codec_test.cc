// Messages round-trip field by field; damaged ones are refused without harm.
#include "wire/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "wire/control.pb.h"
#include "wire/testing/random_messages.h"
#include "wire/testing/same.h"

namespace millrace::wire {
namespace {

using testing::Same;

constexpr int kRounds = 300;  // of each kind

std::vector<uint8_t> Copy(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

template <typename Message, typename Make, typename Decode>
void RoundTrip(uint64_t seed, size_t kinds, Make make, Decode decode) {
  Rng rng(seed);
  Encoder encoder;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t kind = 0; kind < kinds; ++kind) {
      const Message message = make(rng, kind);
      const Envelope envelope = testing::RandomEnvelope(rng);
      const auto bytes = encoder.Encode(envelope, message);
      ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
      const auto received = decode(*bytes);
      ASSERT_TRUE(received.ok()) << "kind " << kind << ": " << received.status().ToString();
      EXPECT_EQ(received->envelope, envelope);
      EXPECT_TRUE(Same(received->message, message)) << "kind " << kind << " round " << round;
    }
  }
}

TEST(Codec, RoundTripToController) {
  Decoder decoder;
  RoundTrip<ToController>(1, std::variant_size_v<ToController>, testing::RandomToController,
                          [&](auto bytes) { return decoder.DecodeToController(bytes); });
}
TEST(Codec, RoundTripToWorker) {
  Decoder decoder;
  RoundTrip<ToWorker>(2, std::variant_size_v<ToWorker>, testing::RandomToWorker,
                      [&](auto bytes) { return decoder.DecodeToWorker(bytes); });
}
TEST(Codec, RoundTripPeerMessage) {
  Decoder decoder;
  RoundTrip<PeerMessage>(3, std::variant_size_v<PeerMessage>, testing::RandomPeerMessage,
                         [&](auto bytes) { return decoder.DecodePeerMessage(bytes); });
}
TEST(Codec, RoundTripHeartbeat) {
  Decoder decoder;
  RoundTrip<Heartbeat>(
      4, 1, [](Rng& rng, size_t) { return testing::RandomHeartbeat(rng); },
      [&](auto bytes) { return decoder.DecodeHeartbeat(bytes); });
}
TEST(Codec, RoundTripEcho) {
  Decoder decoder;
  RoundTrip<Echo>(
      8, 1, [](Rng& rng, size_t) { return testing::RandomEcho(rng); },
      [&](auto bytes) { return decoder.DecodeEcho(bytes); });
}

TEST(Codec, SamplingParamsAndTheirMessageHaveTheSameFields) {
  const auto& message = *proto::SamplingParams::descriptor();
  int fields = 0;
  const SamplingParams params;
  ForEachField(params, [&](const SamplingField& field, const auto&) {
    ++fields;
    EXPECT_NE(message.FindFieldByName(field.name), nullptr) << field.name;
  });
  EXPECT_EQ(message.field_count(), fields);
}

// Each field differs from its default in some random message. Otherwise a field that is new in core
// and not generated would be lost unnoticed.
template <typename T>
void ExpectEveryFieldVaries(const std::vector<T>& samples) {
  const T fresh{};
  boost::pfr::for_each_field(fresh, [&](const auto& field, auto index) {
    bool varies = false;
    for (const T& sample : samples) varies |= !Same(boost::pfr::get<index>(sample), field);
    EXPECT_TRUE(varies) << "field " << index << " of " << typeid(T).name();
  });
}

template <typename Variant, typename Make>
void ExpectVariantVaries(Make make) {
  Rng rng(5);
  for (size_t kind = 0; kind < std::variant_size_v<Variant>; ++kind) {
    std::visit(
        [&]<typename T>(const T&) {
          std::vector<T> samples;
          for (int i = 0; i < 40; ++i) samples.push_back(std::get<T>(make(rng, kind)));
          ExpectEveryFieldVaries(samples);
        },
        make(rng, kind));
  }
}

TEST(Codec, RandomMessagesReachEveryField) {
  ExpectVariantVaries<ToController>(testing::RandomToController);
  ExpectVariantVaries<ToWorker>(testing::RandomToWorker);
  ExpectVariantVaries<PeerMessage>(testing::RandomPeerMessage);
  Rng rng(6);
  std::vector<StepPlan> plans;
  std::vector<SequenceStep> steps;
  std::vector<SequenceStart> starts;
  std::vector<SamplingParams> params;
  std::vector<StepResult> results;
  std::vector<SequenceResult> sequence_results;
  std::vector<WorkerAddress> addresses;
  std::vector<WorkerIdentity> identities;
  std::vector<MachineFacts> machines;
  std::vector<PipelineHop> hops;
  std::vector<KvSource> sources;
  for (int i = 0; i < 60; ++i) {
    plans.push_back(*std::get<PipelineStep>(testing::RandomToWorker(rng, 6)).plan);
    for (const auto& s : plans.back().sequences) steps.push_back(s);
    for (const auto& s : plans.back().started) starts.push_back(s), params.push_back(*s.params);
    results.push_back(std::get<StepDone>(testing::RandomToController(rng, 4)).result);
    for (const auto& s : results.back().sequences) sequence_results.push_back(s);
    const auto join = std::get<Join>(testing::RandomToController(rng, 0));
    addresses.push_back(join.address);
    identities.push_back(join.identity);
    machines.push_back(join.machine);
    const auto open = std::get<OpenPipeline>(testing::RandomToWorker(rng, 4));
    for (const auto& h : open.hops) hops.push_back(h);
    const auto pull = std::get<PullKv>(testing::RandomToWorker(rng, 9));
    for (const auto& s : pull.sources) sources.push_back(s);
  }
  ExpectEveryFieldVaries(plans);
  ExpectEveryFieldVaries(steps);
  ExpectEveryFieldVaries(starts);
  ExpectEveryFieldVaries(params);
  ExpectEveryFieldVaries(results);
  ExpectEveryFieldVaries(sequence_results);
  ExpectEveryFieldVaries(addresses);
  ExpectEveryFieldVaries(identities);
  ExpectEveryFieldVaries(machines);
  ExpectEveryFieldVaries(hops);
  ExpectEveryFieldVaries(sources);
}

TEST(Codec, SiblingsShareOnePrompt) {
  auto plan = std::make_shared<StepPlan>();
  const auto params = std::make_shared<const SamplingParams>();
  const auto prompt = std::make_shared<const std::vector<TokenId>>(10000, 100000);
  for (uint64_t i = 0; i < 8; ++i)
    plan->started.push_back({SequenceId(i), params, i, prompt, nullptr});
  Encoder encoder;
  Decoder decoder;
  const auto bytes = encoder.Encode({}, ToWorker(PipelineStep{PipelineId(1), plan}));
  ASSERT_TRUE(bytes.ok());
  EXPECT_LT(bytes->size(), 31000u) << "the prompt is written once";
  const auto received = decoder.DecodeToWorker(*bytes);
  ASSERT_TRUE(received.ok());
  const auto& started = std::get<PipelineStep>(received->message).plan->started;
  ASSERT_EQ(started.size(), 8u);
  EXPECT_EQ(started[0].prompt, started[7].prompt) << "and kept once";
}

TEST(Codec, ErrorTextIsTruncatedAndMadePrintable) {
  Encoder encoder;
  Decoder decoder;
  const PipelineOpened message{PipelineId(1), Internal("line\nbreak" + std::string(5000, 'x'))};
  const auto bytes = encoder.Encode({}, ToController(message));
  ASSERT_TRUE(bytes.ok());
  const auto received = decoder.DecodeToController(*bytes);
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  const Status& status = std::get<PipelineOpened>(received->message).status;
  EXPECT_EQ(status.message().substr(0, 10), "line break");
  EXPECT_EQ(status.message().size(), kStatusBytesMax);
}

// Every byte of valid messages is changed, cut and doubled: each time there is a result, never a
// crash. A message that is still accepted can be written and read again.
TEST(Codec, DamagedMessages) {
  Rng rng(7);
  Encoder encoder, again;
  Decoder decoder;
  int refused = 0, accepted = 0;
  const auto probe = [&](const std::vector<uint8_t>& bytes) {
    const auto received = decoder.DecodeToWorker(bytes);
    if (!received.ok()) {
      ++refused;
      EXPECT_EQ(received.status().code(), StatusCode::kInvalidArgument);
      EXPECT_FALSE(received.status().message().empty());
      return;
    }
    ++accepted;
    const auto rewritten = again.Encode(received->envelope, received->message);
    ASSERT_TRUE(rewritten.ok());
    EXPECT_TRUE(decoder.DecodeToWorker(*rewritten).ok());
  };
  for (size_t kind = 0; kind < std::variant_size_v<ToWorker>; ++kind) {
    const auto bytes =
        encoder.Encode(testing::RandomEnvelope(rng), testing::RandomToWorker(rng, kind));
    ASSERT_TRUE(bytes.ok());
    const std::vector<uint8_t> good = Copy(*bytes);
    const size_t stride = std::max<size_t>(1, good.size() / 200);
    for (size_t i = 0; i < good.size(); i += stride) {
      std::vector<uint8_t> bad = good;
      bad[i] ^= static_cast<uint8_t>(1 << rng.Between(0, 7));
      probe(bad);
      bad = good;
      bad.resize(i);
      probe(bad);
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(accepted, 20);
}

}  // namespace
}  // namespace millrace::wire
