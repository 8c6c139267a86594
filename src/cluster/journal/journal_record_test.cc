// Records and segments: encoding and decoding, and all kinds of damage to one file.
#include <gtest/gtest.h>

#include <cmath>

#include "base/crc32c.h"
#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "cluster/journal/journal_segment.h"
#include "cluster/journal/testing/journal_workload.h"

namespace millrace::cluster::testing {
namespace {

JournalAccept FullAccept() {
  JournalAccept accept{.request = RequestId(7),
                       .external_id = "client's own",
                       .prompt = {1, 2, 1 << 30},
                       .priority = -3,
                       .cache_salt = std::string("a\0b", 3),
                       .arrived_unix_ms = 1'700'000'000'000,
                       .front_end = "{}",
                       .client = "a client"};
  accept.params = {.n = 3,
                   .max_tokens = 17,
                   .min_tokens = 2,
                   .temperature = 0.1,
                   .top_p = 0.9,
                   .top_k = 40,
                   .min_p = 0.05,
                   .repetition_penalty = 1.1,
                   .presence_penalty = -1,
                   .frequency_penalty = 2,
                   .seed = UINT64_MAX,
                   .logit_bias = {{5, -1.5f}, {6, 100.f}},
                   .stop_token_ids = {9, 10},
                   .stop = {"\n\n", "b"},
                   .include_stop_str_in_output = true,
                   .ignore_eos = true,
                   .skip_special_tokens = false,
                   .logprobs = 0,
                   .prompt_logprobs = 20};
  return accept;
}

TEST(Journal, EveryFieldRoundTrips) {
  const JournalAccept accept = FullAccept();
  const Result<JournalRecord> read = DecodeJournalRecord(EncodeJournalRecord(accept));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  const auto& back = std::get<JournalAccept>(*read);
  EXPECT_EQ(back.request, accept.request);
  EXPECT_EQ(back.external_id, accept.external_id);
  EXPECT_EQ(back.prompt, accept.prompt);
  EXPECT_EQ(back.priority, accept.priority);
  EXPECT_EQ(back.cache_salt, accept.cache_salt);
  EXPECT_EQ(back.client, accept.client);
  EXPECT_EQ(back.arrived_unix_ms, accept.arrived_unix_ms);
  EXPECT_EQ(back.front_end, accept.front_end);
  EXPECT_EQ(back.params, accept.params);

  for (const JournalTokens& tokens :
       {JournalTokens{RequestId(9), 1, 4, {3, 2, 1}},
        JournalTokens{RequestId(9), 1, 4, {3, 2, 1}, 16, "stop"},
        JournalTokens{RequestId(9),
                      1,
                      4,
                      {3, 2},
                      16,
                      {},
                      {{{{3, -1.5f, 2}, {{1, -0.5f, 1}, {7, -2, 9}}}, {{2, -0.25f, 1}, {}}}},
                      {{{{8, -3, 4}, {}}}},
                      "fp_1"}}) {
    EXPECT_EQ(std::get<JournalTokens>(*DecodeJournalRecord(EncodeJournalRecord(tokens))), tokens);
  }
  JournalAccept joining = accept;
  joining.joins = RequestId(3);
  EXPECT_EQ(std::get<JournalAccept>(*DecodeJournalRecord(EncodeJournalRecord(joining))).joins,
            RequestId(3));
  EXPECT_FALSE(joining == accept);
  const JournalFinished end{RequestId(9), 1, "length"};
  EXPECT_EQ(std::get<JournalFinished>(*DecodeJournalRecord(EncodeJournalRecord(end))), end);
}

TEST(Journal, ARecordThatIsTooShortOrTooLongIsRefused) {
  for (const JournalRecord& record :
       {JournalRecord(FullAccept()), JournalRecord(JournalTokens{RequestId(1), 0, 0, {1, 2}}),
        JournalRecord(JournalTokens{RequestId(1), 0, 0, {1, 2}, 3, "stop"}),
        JournalRecord(JournalFinished{RequestId(1), 0, "stop"})}) {
    const std::string bytes = EncodeJournalRecord(record);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeJournalRecord(bytes.substr(0, size)).ok()) << size;
    }
    EXPECT_FALSE(DecodeJournalRecord(bytes + "x").ok());
  }
}

TEST(Journal, BytesThatAreNoRecordAreRefusedWithTheReason) {
  const auto refusal = [](const std::string& bytes) {
    const Status refused = DecodeJournalRecord(bytes).status();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
    return refused.message();
  };
  EXPECT_EQ(refusal(""), "unknown kind of record");
  EXPECT_EQ(refusal("\x7a\x01x"), "unknown kind of record");
  EXPECT_EQ(refusal("x"), "the bytes are not a record");
  JournalAccept accept = FullAccept();
  accept.params.top_p = NAN;
  EXPECT_EQ(refusal(EncodeJournalRecord(accept)), "params: top_p must be in (0, 1], got nan");
  EXPECT_EQ(accept, accept) << "NaN equals itself";
  JournalTokens tokens{RequestId(1), 0, 0, {1}};
  tokens.logprobs.positions.push_back({{1, NAN, 1}, {}});
  EXPECT_EQ(std::get<JournalTokens>(*DecodeJournalRecord(EncodeJournalRecord(tokens))), tokens);
  tokens.logprobs.positions[0].top.resize(kPositionLogprobsMax + 1);
  EXPECT_EQ(refusal(EncodeJournalRecord(tokens)), "logprobs has 150 entries, the limit is 149");
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(1)}).ok());
  EXPECT_FALSE(state.Apply(tokens).ok()) << "it would not be read back";
  tokens.logprobs.positions[0] = {{1, -1, -1}, {}};
  EXPECT_FALSE(state.Apply(tokens).ok());
}

TEST(Journal, ARecordThatDoesNotFitChangesNothing) {
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(3), .params = {.n = 2}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(3), 1, 0, {5, 6}}).ok());
  ASSERT_TRUE(state.Apply(JournalFinished{RequestId(3), 0, "stop"}).ok());
  const JournalState before = state;
  const std::string too_long(kJournalTextBytesMax + 1, 'x');
  const std::vector<TokenId> too_many(kJournalTokensMax + 1);
  for (const JournalRecord& bad : {
           JournalRecord(JournalAccept{.request = RequestId(3)}),
           JournalRecord(JournalAccept{.request = RequestId(2)}),
           JournalRecord(JournalAccept{.request = RequestId(9), .params = {.n = 0}}),
           JournalRecord(JournalAccept{.request = RequestId(9), .params = {.n = 1 << 20}}),
           JournalRecord(JournalTokens{RequestId(4), 0, 0, {1}}),
           JournalRecord(JournalTokens{RequestId(3), 2, 0, {1}}),
           JournalRecord(JournalTokens{RequestId(3), -1, 0, {1}}),
           JournalRecord(JournalTokens{RequestId(3), 1, 1, {1}}),
           JournalRecord(JournalTokens{RequestId(3), 1, 3, {1}}),
           JournalRecord(JournalTokens{RequestId(3), 1, 2, {}}),
           JournalRecord(JournalTokens{RequestId(3), 0, 0, {1}}),
           JournalRecord(JournalFinished{RequestId(3), 0, "again"}),
           JournalRecord(JournalFinished{RequestId(8), 0, "stop"}),
           JournalRecord(JournalFinished{RequestId(3), 1, too_long}),
           JournalRecord(JournalTokens{RequestId(3), 1, 2, {-1}}),
           JournalRecord(JournalTokens{RequestId(3), 1, 2, too_many}),
           JournalRecord(JournalTokens{RequestId(3), 1, 2, {1}, 0, too_long}),
           JournalRecord(JournalAccept{.request = RequestId(9), .external_id = too_long}),
           JournalRecord(JournalAccept{.request = RequestId(9), .prompt = {-1}}),
           JournalRecord(JournalAccept{.request = RequestId(9), .prompt = too_many}),
           JournalRecord(JournalAccept{.request = RequestId(9), .params = {.top_p = 2}}),
           JournalRecord(JournalAccept{.request = RequestId(9), .cache_salt = too_long}),
           JournalRecord(JournalAccept{.request = RequestId(9), .front_end = too_long}),
       }) {
    EXPECT_FALSE(state.Apply(bad).ok());
    EXPECT_EQ(state, before);
  }
}

// A small file of random records, with the state after each of them.
struct SmallFile {
  std::string bytes;
  std::vector<size_t> ends;          // of the header, then of each record
  std::vector<JournalState> states;  // after 0, 1, 2 ... records
};

SmallFile MakeSmallFile(uint64_t seed, int records) {
  SmallFile file{.bytes = EncodeSegmentHeader({.number = 5})};
  JournalWorkload workload(seed);
  JournalState state;
  file.ends.push_back(file.bytes.size());
  file.states.push_back(state);
  for (int i = 0; i < records; ++i) {
    const JournalRecord record = workload.Next();
    file.bytes += FrameJournalRecord(record, 5, static_cast<uint64_t>(i));
    MR_CHECK(state.Apply(record).ok());
    file.ends.push_back(file.bytes.size());
    file.states.push_back(state);
  }
  return file;
}

TEST(Journal, ATruncatedFileYieldsTheRecordsBeforeTheCut) {
  for (uint64_t seed = 0; seed < 3u * static_cast<uint64_t>(TestScale()); ++seed) {
    const SmallFile file = MakeSmallFile(seed, 25);
    for (size_t size = 0; size <= file.bytes.size(); ++size) {
      JournalState state;
      const auto report = ReadSegment(file.bytes.substr(0, size), 5, state);
      const auto whole = std::upper_bound(file.ends.begin(), file.ends.end(), size);
      const size_t records =
          whole == file.ends.begin() ? 0 : static_cast<size_t>(whole - file.ends.begin()) - 1;
      ASSERT_EQ(report.records, records) << size;
      ASSERT_EQ(state, file.states[records]) << size;
      ASSERT_EQ(report.damage, "") << size;
      const bool at_an_end = std::count(file.ends.begin(), file.ends.end(), size) > 0;
      ASSERT_EQ(report.torn, !at_an_end) << size;
    }
  }
}

TEST(Journal, AFlippedBitIsFoundAndNothingFromItOnIsUsed) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(TestScale()); ++seed) {
    const SmallFile file = MakeSmallFile(seed, 12);
    for (size_t bit = 0; bit < file.bytes.size() * 8; ++bit) {
      std::string bytes = file.bytes;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      JournalState state;
      const auto report = ReadSegment(bytes, 5, state);
      const auto in = std::upper_bound(file.ends.begin(), file.ends.end(), bit / 8);
      const size_t records =
          in == file.ends.begin() ? 0 : static_cast<size_t>(in - file.ends.begin()) - 1;
      ASSERT_NE(report.damage, "") << bit;
      ASSERT_EQ(report.records, records) << bit;
      ASSERT_EQ(state, file.states[records]) << bit;
    }
  }
}

std::string HeaderOfVersion(char digit) {
  std::string header = EncodeSegmentHeader({.number = 1, .snapshot = true});
  header[7] = digit;
  const uint32_t checksum = Crc32c(std::string_view(header).substr(0, 20));
  header.replace(20, 4, reinterpret_cast<const char*>(&checksum), 4);
  return header;
}

TEST(Journal, AnotherFormatVersionIsRefusedWithBothVersions) {
  for (const char digit : {'1', '4'}) {
    const Status refused = DecodeSegmentHeader(HeaderOfVersion(digit)).status();
    EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
    const std::string its = std::string("version 0") + digit;
    EXPECT_NE(refused.message().find(its), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("versions 02 and 03"), std::string::npos) << refused.message();
  }
}

TEST(Journal, TheVersionBeforeIsRead) {
  const std::string before = HeaderOfVersion('2');
  EXPECT_TRUE(DecodeSegmentHeader(before).ok());
  const std::string record =
      FrameJournalRecord(JournalAccept{.request = RequestId(3), .prompt = {1, 2}}, 1, 0);
  JournalState state;
  const JournalSegmentReport report = ReadSegment(before + record, 1, state);
  EXPECT_EQ(report.damage, "");
  EXPECT_EQ(state.requests().size(), 1u);
  JournalState none;
  EXPECT_TRUE(ReadSegment(before.substr(0, 10), 1, none).torn) << "a header that is cut short";
}

// The program before reads version 2 and ignores what it does not know of a request's parameters.
TEST(Journal, ProgramsThatWouldIgnoreAConstraintRefuseTheJournal) {
  EXPECT_EQ(EncodeSegmentHeader({.number = 1, .snapshot = true}).substr(0, 8), "MRJRNL03");
  int parameters = 0;
  const JournalAccept accept;
  ForEachField(accept.params, [&](const SamplingField&, const auto&) { ++parameters; });
  EXPECT_EQ(parameters, 26) << "if version 3 would ignore the new one to a wrong effect, raise the "
                               "version in journal_segment.cc";
}

TEST(Journal, ZeroPagesAndMisplacedRecordsAreFound) {
  const SmallFile file = MakeSmallFile(1, 12);
  auto read = [](const std::string& bytes, uint64_t number, JournalState& state) {
    return ReadSegment(bytes, number, state);
  };
  JournalState zero, twice, swapped, other;
  EXPECT_NE(read(file.bytes + std::string(4096, '\0'), 5, zero).damage, "");
  EXPECT_EQ(zero, file.states.back()) << "records before the damage are used";
  const std::string first = file.bytes.substr(file.ends[0], file.ends[1] - file.ends[0]);
  EXPECT_NE(read(file.bytes + first, 5, twice).damage, "") << "a record is valid in its place only";
  EXPECT_EQ(twice, file.states.back());
  std::string cut = file.bytes;
  cut.erase(file.ends[3], file.ends[4] - file.ends[3]);
  EXPECT_NE(read(cut, 5, swapped).damage, "");
  EXPECT_EQ(swapped, file.states[3]);
  EXPECT_NE(read(file.bytes, 6, other).damage, "") << "a segment with another's number";
  EXPECT_EQ(other, JournalState());
}

TEST(Journal, TheOrderOfContinuationsIsKept) {
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(1), .params = {.n = 2}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 0, {1}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 1, {2}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 1, 0, {3}, 8}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 2, {4}, 0, "stop"}).ok());
  const JournalRequest& request = state.requests().at(RequestId(1));
  EXPECT_EQ(request.runs, (std::vector<JournalRun>{{0, 2, 0}, {1, 1, 1}, {0, 1, 2}}));
  EXPECT_EQ(request.cached_prompt_tokens, 8);
  EXPECT_EQ(request.continuations[0].finish_reason, "stop");
  EXPECT_FALSE(request.finished());
  EXPECT_FALSE(state.Apply(JournalTokens{RequestId(1), 0, 3, {5}}).ok()) << "it has ended";
}

TEST(Journal, TheOrderOfRequestsOfOneStreamIsKeptAndTheyAreForgottenTogether) {
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(1)}).ok());
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(2)}).ok());
  JournalAccept joining{.request = RequestId(3)};
  joining.joins = RequestId(1);
  ASSERT_TRUE(state.Apply(joining).ok());
  for (const uint64_t target : {3, 4, 9}) {  // a joining request, itself, an unknown one
    joining.request = RequestId(4);
    joining.joins = RequestId(target);
    EXPECT_FALSE(state.Apply(joining).ok());
  }
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 0, {1}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(2), 0, 0, {1}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 1, {2}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(3), 0, 0, {3}}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 2, {4}, 0, "stop"}).ok());
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(2), 0, 1, {1}}).ok());
  const auto runs = [&](uint64_t id) { return state.requests().at(RequestId(id)).runs; };
  EXPECT_EQ(runs(1), (std::vector<JournalRun>{{0, 2, 0}, {0, 1, 2}}));
  EXPECT_EQ(runs(2), (std::vector<JournalRun>{{0, 2, 0}})) << "another stream";
  EXPECT_EQ(runs(3), (std::vector<JournalRun>{{0, 1, 1}}));
  JournalState restored;
  for (const JournalRecord& record : state.Snapshot()) ASSERT_TRUE(restored.Apply(record).ok());
  EXPECT_EQ(restored, state);
  EXPECT_EQ(state.StreamOf(RequestId(3)), RequestId(1));
  EXPECT_FALSE(state.StreamFinished(RequestId(1)));
  ASSERT_TRUE(state.Apply(JournalFinished{RequestId(3), 0, "abort"}).ok());
  EXPECT_TRUE(state.StreamFinished(RequestId(1)));
  state.ForgetStream(RequestId(1));
  EXPECT_EQ(state.requests().size(), 1u);
}

TEST(Journal, LogprobsCoverAllTokensOrNone) {
  const JournalLogprobs one{{{{3, -1.5f, 2}, {{1, -0.5f, 1}}}}};
  JournalTokens tokens{RequestId(1), 0, 0, {1}};
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(1), .params = {.n = 2}}).ok());
  tokens.logprobs = one;
  tokens.prompt_logprobs = one;
  ASSERT_TRUE(state.Apply(tokens).ok());
  tokens.position = 1;
  tokens.tokens = {2, 3};
  EXPECT_FALSE(state.Apply(tokens).ok()) << "one for two tokens";
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 1, 0, {1}}).ok());
  tokens = {RequestId(1), 1, 1, {1}};
  tokens.logprobs = one;
  EXPECT_FALSE(state.Apply(tokens).ok()) << "the token before has none";
  const JournalRequest& request = state.requests().at(RequestId(1));
  EXPECT_EQ(request.prompt_logprobs, one);
  EXPECT_EQ(request.continuations[0].logprobs, one);
  JournalState restored;
  for (const JournalRecord& record : state.Snapshot()) ASSERT_TRUE(restored.Apply(record).ok());
  EXPECT_EQ(restored, state);
}

TEST(Journal, ALongStreamTakesSeveralSnapshotRecords) {
  JournalState state;
  ASSERT_TRUE(state.Apply(JournalAccept{.request = RequestId(1)}).ok());
  std::vector<TokenId> many(2 * kJournalSnapshotTokensMax + 5);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<TokenId>(i);
  ASSERT_TRUE(state.Apply(JournalTokens{RequestId(1), 0, 0, many}).ok());
  EXPECT_EQ(state.Snapshot().size(), 5u);
  JournalState restored;
  for (const JournalRecord& record : state.Snapshot()) ASSERT_TRUE(restored.Apply(record).ok());
  EXPECT_EQ(restored, state);
}

TEST(Journal, ASnapshotResultsInTheSameState) {
  JournalWorkload workload(3);
  JournalState state;
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(state.Apply(workload.Next()).ok());
  JournalState restored;
  for (const JournalRecord& record : state.Snapshot()) ASSERT_TRUE(restored.Apply(record).ok());
  EXPECT_EQ(restored, state);
}

}  // namespace
}  // namespace millrace::cluster::testing
