#include "cluster/control/parts/membership.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

namespace millrace::cluster {
namespace {

Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

Join JoinAs(const std::string& name, uint64_t incarnation = 1) {
  Join join;
  join.name = name;
  join.address.incarnation = Incarnation(incarnation);
  join.identity.model_fingerprint = "model";
  join.identity.numeric_class = "class";
  join.identity.kv_layout = "layout";
  return join;
}

Heartbeat BeatOf(uint64_t sequence, uint64_t incarnation = 1) {
  Heartbeat beat;
  beat.incarnation = Incarnation(incarnation);
  beat.sequence = sequence;
  return beat;
}

MembershipOptions OptionsOfModel() {
  MembershipOptions options;
  options.identity.model_fingerprint = "model";
  return options;
}

const WorkerId kFirst(1), kSecond(2);
const ConnectionId kOne(11), kTwo(12);

TEST(Membership, RefusesAnotherVersionModelOrKvLayout) {
  Membership members(OptionsOfModel());
  Join join = JoinAs("a");
  join.identity.protocol = {kProtocolVersion + 1, kProtocolVersion + 2};
  EXPECT_NE(members.CheckJoin(join).message().find("protocol version"), std::string::npos);
  join.identity.protocol.oldest = kProtocolVersion;  // of the next release
  EXPECT_TRUE(members.CheckJoin(join).ok());
  join = JoinAs("a");
  join.identity.model_fingerprint = "other";
  EXPECT_EQ(members.CheckJoin(join).message(),
            "model fingerprint: this cluster has model, the worker has other");
  join.identity.model_fingerprint = "";  // it will get the model
  EXPECT_TRUE(members.CheckJoin(join).ok());
  EXPECT_EQ(members.CheckJoin(JoinAs("")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(members.CheckJoin(JoinAs("coordinator")).code(), StatusCode::kInvalidArgument);
}

TEST(Membership, RefusesAWorkerThatNobodyReaches) {
  Membership members(OptionsOfModel());
  for (const char* where : {"0.0.0.0:7001", "[::]:7001"}) {
    Join control = JoinAs("a"), data = JoinAs("a");
    control.address.control = where;
    data.address.data = where;
    for (const Join& join : {control, data}) {
      EXPECT_EQ(members.CheckJoin(join).message(),
                std::string("others cannot reach the worker at ") + where +
                    ": give it --advertise with a name of its machine");
    }
  }
  Join join = JoinAs("a");
  join.address.control = join.address.data = "10.0.0.2:7001";
  EXPECT_TRUE(members.CheckJoin(join).ok());
}

SamplingParams Constrained() {
  SamplingParams params;
  params.grammar = "regex:a";
  return params;
}

TEST(Membership, ConstrainedOutputNeedsATable) {
  EXPECT_EQ(Membership(OptionsOfModel()).CanConstrain(Constrained()).code(),
            StatusCode::kFailedPrecondition);
  MembershipOptions options = OptionsOfModel();
  options.token_table = TokenTable{"digest", std::make_shared<const std::string>("bytes")};
  Membership members(options);
  EXPECT_TRUE(members.CanConstrain(Constrained()).ok());
  Join join = JoinAs("new");
  EXPECT_EQ(members.TokensFor(members.Add(kFirst, kOne, join, At(0)))->digest, "digest");
  members.Remove(kFirst);
  join.token_table = "digest";
  EXPECT_EQ(members.TokensFor(members.Add(kFirst, kOne, join, At(0))), nullptr);

  Join old = JoinAs("old", 2);
  old.identity.protocol = {5, 5};
  EXPECT_EQ(members.TokensFor(members.Add(kSecond, kTwo, old, At(0))), nullptr);
  EXPECT_TRUE(members.CanConstrain(Constrained()).ok());
}

TEST(Membership, TheFingerprintIsOfAllThatDecidesTheBits) {
  const auto fingerprint = [](const Join& join, const char* model = "model") {
    Membership members({.identity = {.model_fingerprint = model}});
    return members.FingerprintOf(members.Add(kFirst, kOne, join, At(0)).bits);
  };
  const std::string first = fingerprint(JoinAs("a"));
  const std::string numeric_class = JoinAs("a").identity.numeric_class;
  EXPECT_EQ(first.size(), std::string("fp_0123456789abcdef_").size() + numeric_class.size());
  EXPECT_TRUE(first.starts_with("fp_") && first.ends_with("_" + numeric_class)) << first;
  EXPECT_EQ(fingerprint(JoinAs("b", 7)), first) << "not of the worker's name";
  Join other = JoinAs("a");
  other.identity.numeric_class = "another";
  EXPECT_NE(fingerprint(other), first);
  for (const std::string& odd : {std::string("a, b"), std::string("\n"), std::string(65, 'x')}) {
    other.identity.numeric_class = odd;
    EXPECT_EQ(fingerprint(other).size(), std::string("fp_0123456789abcdef").size()) << odd;
  }
  other = JoinAs("a");
  other.identity.kv_layout = "another";
  EXPECT_NE(fingerprint(other), first);
  EXPECT_NE(fingerprint(JoinAs("a"), "another"), first);
  other = JoinAs("a");
  other.identity.model_fingerprint = "";
  EXPECT_EQ(fingerprint(other, ""), "") << "the model is not known";
}

TEST(Membership, WorkersOfAnotherClassJoin) {
  Membership members(OptionsOfModel());
  const BitClass bits = members.Add(kFirst, kOne, JoinAs("a"), At(0)).bits;
  Join other = JoinAs("b");
  other.identity.numeric_class = "another";
  other.identity.kv_layout = "another layout";
  EXPECT_TRUE(members.CheckJoin(other).ok());
  const BitClass others = members.Add(kSecond, kTwo, other, At(0)).bits;
  EXPECT_NE(bits, others);
  EXPECT_EQ(members.NumericClassOf(bits), "class");
  EXPECT_EQ(members.NumericClassOf(others), "another");
  EXPECT_EQ(members.usable_by_class(), (std::map<BitClass, int>{{bits, 1}, {others, 1}}));
  // A class outlives its workers: requests belong to it.
  const std::string fingerprint = members.FingerprintOf(others);
  members.Remove(kSecond);
  EXPECT_EQ(members.NumericClassOf(others), "");
  EXPECT_EQ(members.ClassWith(fingerprint), others);
  EXPECT_EQ(members.Add(WorkerId(3), ConnectionId(13), other, At(1)).bits, others);
}

TEST(Membership, WorkersOfAClassHaveOneKvLayout) {
  Membership members(OptionsOfModel());
  const BitClass bits = members.Add(kFirst, kOne, JoinAs("a"), At(0)).bits;
  Join other = JoinAs("b");
  other.identity.kv_layout = "another layout";
  EXPECT_EQ(members.CheckJoin(other).message(),
            "KV layout: this cluster has layout, the worker has another layout");
  other.identity.kv_layout = "";  // it has no model yet
  EXPECT_TRUE(members.CheckJoin(other).ok());
  EXPECT_EQ(members.Add(kSecond, kTwo, other, At(0)).bits, bits);
}

TEST(Membership, RefusesMoreClassesThanTheLimit) {
  Membership members(OptionsOfModel());
  Join join = JoinAs("a");
  for (uint64_t i = 0; i < BitClasses::kClassesMax; ++i) {
    join.identity.numeric_class = "class " + std::to_string(i);
    ASSERT_TRUE(members.CheckJoin(join).ok());
    members.Add(WorkerId(i + 1), ConnectionId(i + 1), join, At(0));
    members.Remove(WorkerId(i + 1));
  }
  EXPECT_TRUE(members.CheckJoin(join).ok()) << "its class has been here";
  join.identity.numeric_class = "one more";
  EXPECT_EQ(members.CheckJoin(join).code(), StatusCode::kResourceExhausted);
}

TEST(Membership, RefusesMoreThanTheLimit) {
  Membership members(OptionsOfModel());
  for (uint64_t i = 0; i < MembershipOptions::kWorkersMax; ++i) {
    EXPECT_TRUE(members.CheckJoin(JoinAs("new")).ok());
    members.Add(WorkerId(i + 1), ConnectionId(i + 1), JoinAs("w" + std::to_string(i)), At(0));
  }
  EXPECT_EQ(members.CheckJoin(JoinAs("new")).code(), StatusCode::kResourceExhausted);
  members.CheckIntegrity();
}

TEST(Membership, AWorkerWhoseHeartbeatsArriveKeepsItsName) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a", 1), At(0));
  EXPECT_TRUE(members.CheckName(JoinAs("a", 1), At(0.1)).ok()) << "the same process";
  EXPECT_TRUE(members.CheckName(JoinAs("b", 2), At(0.1)).ok());
  EXPECT_EQ(members.CheckName(JoinAs("a", 2), At(0.1)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(members.Alive(kFirst, At(0.7)));
  EXPECT_FALSE(members.Alive(kFirst, At(0.75)));
  EXPECT_TRUE(members.CheckName(JoinAs("a", 2), At(0.75)).ok());
}

TEST(Membership, FindsWorkersByIdConnectionAndName) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a"), At(0));
  members.Add(kSecond, kTwo, JoinAs("b"), At(0));
  EXPECT_EQ(members.Find(kTwo)->id, kSecond);
  EXPECT_EQ(members.Find("b")->id, kSecond);
  EXPECT_EQ(members.Find(kSecond)->address.worker, kSecond);
  EXPECT_EQ(members.usable(), 2);
  members.at(kFirst).draining = true;
  members.at(kSecond).unusable = "no memory";
  EXPECT_EQ(members.usable(), 0);
  EXPECT_EQ(members.Remove(kSecond).join.name, "b");
  EXPECT_EQ(members.Find(kTwo), nullptr);
  EXPECT_EQ(members.Find("b"), nullptr);
  EXPECT_EQ(members.Find(kSecond), nullptr);
  members.CheckIntegrity();
}

TEST(Membership, DropsHeartbeatsOfEarlierProcessesAndOldOnes) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a", 2), At(0));
  EXPECT_FALSE(members.Beat(kTwo, BeatOf(1, 2), At(1))) << "no member";
  EXPECT_FALSE(members.Beat(kOne, BeatOf(1, 1), At(1))) << "an earlier process";
  EXPECT_TRUE(members.Beat(kOne, BeatOf(2, 2), At(1)));
  EXPECT_FALSE(members.Beat(kOne, BeatOf(2, 2), At(2))) << "repeated";
  EXPECT_EQ(members.at(kFirst).last_beat, At(1));
}

TEST(Membership, ASilentWorkerIsLost) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a"), At(0));
  EXPECT_TRUE(members.Lost(At(3)).empty());
  ASSERT_EQ(members.Lost(At(3.1)).size(), 1u);
  EXPECT_EQ(members.Lost(At(3.1)).front().reason.message(), "silent for 3.1 s");
}

// This process stood still, and so nobody took the heartbeats.
TEST(Membership, ItsOwnPauseIsNoSilence) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a"), At(0));
  EXPECT_TRUE(members.Lost(At(0.5)).empty());
  EXPECT_TRUE(members.Lost(At(60.5)).empty());
  EXPECT_EQ(members.stood_still(), Duration::Seconds(60));
  EXPECT_EQ(members.at(kFirst).last_beat, At(60));
  for (const double s : {61.0, 62.0, 63.0}) EXPECT_TRUE(members.Lost(At(s)).empty()) << s;
  EXPECT_EQ(members.stood_still(), Duration());
  EXPECT_EQ(members.Lost(At(63.1)).size(), 1u) << "it is silent while this process runs";
}

TEST(Membership, AWorkerThatIsStuckInABatchIsLost) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a"), At(0));
  Heartbeat beat = BeatOf(1);
  beat.batch_age_ms = 59'000;  // the first batch may take a minute
  members.Beat(kOne, beat, At(59));
  EXPECT_TRUE(members.Lost(At(59)).empty());
  beat = BeatOf(2);
  beat.steps_done = 1;
  beat.batch_age_ms = 1'000;
  members.Beat(kOne, beat, At(60));
  beat = BeatOf(3);
  beat.steps_done = 2;  // the longest batch took 59 s: the limit is now 8 x 59 s
  beat.batch_age_ms = 471'000;
  members.Beat(kOne, beat, At(61));
  EXPECT_TRUE(members.Lost(At(61)).empty());
  beat = BeatOf(4);
  beat.steps_done = 2;
  beat.batch_age_ms = 473'000;
  members.Beat(kOne, beat, At(62));
  EXPECT_EQ(members.Lost(At(62)).size(), 1u);
  beat = BeatOf(5);
  beat.steps_done = 2;
  beat.batch_age_ms = 500'000;
  beat.waits_for_ranks = true;
  members.Beat(kOne, beat, At(63));
  EXPECT_TRUE(members.Lost(At(63)).empty()) << "another rank of its stage is stuck";
}

TEST(Membership, AWorkerWhoseThreadStandsStillIsLost) {
  Membership members(OptionsOfModel());
  members.Add(kFirst, kOne, JoinAs("a"), At(0));
  Heartbeat beat = BeatOf(1);
  beat.still_ms = 5'000;  // a host that was stopped for so long
  members.Beat(kOne, beat, At(6));
  EXPECT_TRUE(members.Lost(At(6)).empty());
  beat = BeatOf(2);
  beat.still_ms = 10'300;
  members.Beat(kOne, beat, At(11));
  const auto lost = members.Lost(At(11));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_TRUE(lost.front().stands_still);
  EXPECT_EQ(lost.front().reason.message(),
            "its computing thread has not moved for 10.3 s, the limit is 10.0 s");
}

TEST(Membership, WorkersThatStoodStillAreRememberedUntilTheyJoinAgain) {
  Membership members(OptionsOfModel());
  for (uint64_t i = 1; i <= MembershipOptions::kStillMax + 2; ++i) {
    const WorkerId id(100 + i);
    members.Add(id, ConnectionId(i), JoinAs("w" + std::to_string(i), i), At(0));
    members.NoteStill(id, Unavailable("it does not move"));
    members.Remove(id);
  }
  ASSERT_EQ(members.still().size(), MembershipOptions::kStillMax);
  EXPECT_EQ(members.still().front().name, "w3");
  EXPECT_EQ(members.still().front().reason, "it does not move");
  members.Add(WorkerId(1), ConnectionId(1), JoinAs("w3"), At(1));
  EXPECT_EQ(members.still().size(), MembershipOptions::kStillMax - 1);
  EXPECT_EQ(members.still().front().name, "w4");
}

}  // namespace
}  // namespace millrace::cluster
