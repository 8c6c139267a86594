#include "cluster/control/link_probes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"

namespace millrace::cluster {
namespace {

Time Moment(double seconds) { return Time{} + Duration::Seconds(seconds); }

const WorkerId kFrom(1), kTo(2), kFarther(3);

LinkProbed ProbeAnswer(ProbeId probe, double latency_s = 1e-3, double bytes_per_s = 1e9) {
  return {.probe = probe, .latency_s = latency_s, .bytes_per_s = bytes_per_s};
}

// Idle since Moment(0): the next probe at `now`, which must exist.
LinkProbes::Probe BeginProbe(LinkProbes& probes, double now) {
  const auto probe = probes.Next(false, Moment(now));
  EXPECT_TRUE(probe) << now;
  return probe.value_or(LinkProbes::Probe{});
}

TEST(LinkProbes, OneAtATimeAndOnlyAfterAQuietTime) {
  LinkProbes probes({});
  probes.Add(kFrom);
  EXPECT_FALSE(probes.Next(false, Moment(0)));
  probes.Add(kTo);
  EXPECT_FALSE(probes.Next(true, Moment(1)));
  EXPECT_FALSE(probes.Next(false, Moment(2))) << "a request ran a moment ago";
  EXPECT_FALSE(probes.Next(false, Moment(3.9)));
  const LinkProbes::Probe first = BeginProbe(probes, 4);
  EXPECT_EQ(first.pair, LinkProbes::Pair(kFrom, kTo));
  EXPECT_FALSE(probes.Next(false, Moment(5))) << "one is in progress";
  EXPECT_TRUE(probes.Take(kTo, ProbeAnswer(first.id), Moment(5)).ok());
  EXPECT_EQ(probes.links().at({kFrom, kTo}).bytes_per_s, 1e9);
  EXPECT_EQ(probes.links().at({kFrom, kTo}).at, Moment(5));
  const LinkProbes::Probe second = BeginProbe(probes, 5);
  EXPECT_EQ(second.pair, LinkProbes::Pair(kTo, kFrom));
  EXPECT_TRUE(probes.Take(kFrom, ProbeAnswer(second.id), Moment(6)).ok());
  EXPECT_FALSE(probes.Next(false, Moment(304.9)));
  EXPECT_EQ(BeginProbe(probes, 305).pair, LinkProbes::Pair(kFrom, kTo))
      << "the oldest is measured again";
}

TEST(LinkProbes, AbsurdNumbersAreRefusedAndTheOldOnesStay) {
  LinkProbes probes({});
  probes.Add(kFrom);
  probes.Add(kTo);
  probes.Next(false, Moment(0));
  const LinkProbes::Probe good = BeginProbe(probes, 2);
  ASSERT_TRUE(probes.Take(kTo, ProbeAnswer(good.id), Moment(2)).ok());
  ASSERT_TRUE(probes.Take(kFrom, ProbeAnswer(BeginProbe(probes, 3).id), Moment(3)).ok());
  double now = 302;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [latency, rate] : {std::pair{0.0, 1e9},
                                      {-1.0, 1e9},
                                      {std::nan(""), 1e9},
                                      {11.0, 1e9},
                                      {1e-3, 0.0},
                                      {1e-3, -5.0},
                                      {1e-3, std::nan("")},
                                      {1e-3, kInfinity},
                                      {1e-3, 1e15}}) {
    const LinkProbes::Probe probe = BeginProbe(probes, now);
    const Status refused =
        probes.Take(probe.pair.second, ProbeAnswer(probe.id, latency, rate), Moment(now));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << latency << " " << rate;
    now += 61;
  }
  EXPECT_EQ(probes.links().at({kFrom, kTo}).latency_s, 1e-3);
  const LinkProbes::Probe probe = BeginProbe(probes, now);
  LinkProbed failed = ProbeAnswer(probe.id);
  failed.status = Unavailable("busy");
  EXPECT_EQ(probes.Take(probe.pair.second, failed, Moment(now)).message(), "busy");
}

TEST(LinkProbes, OnlyTheAskedWorkerAnswersAndOnlyOnce) {
  LinkProbes probes({});
  probes.Add(kFrom);
  probes.Add(kTo);
  probes.Next(false, Moment(0));
  const LinkProbes::Probe probe = BeginProbe(probes, 2);
  EXPECT_EQ(probes.Take(kFrom, ProbeAnswer(probe.id), Moment(2)).code(), StatusCode::kNotFound);
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(ProbeId(99)), Moment(2)).code(), StatusCode::kNotFound);
  EXPECT_TRUE(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).ok());
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).code(), StatusCode::kNotFound);
}

TEST(LinkProbes, AProbeWithoutAnswerIsGivenUp) {
  LinkProbes probes({});
  probes.Add(kFrom);
  probes.Add(kTo);
  probes.Next(false, Moment(0));
  const LinkProbes::Probe silent = BeginProbe(probes, 2);
  EXPECT_FALSE(probes.Next(false, Moment(31.9)));
  const LinkProbes::Probe next = BeginProbe(probes, 32);
  EXPECT_EQ(next.pair, LinkProbes::Pair(kTo, kFrom)) << "the silent one waits";
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(silent.id), Moment(33)).code(), StatusCode::kNotFound);
}

TEST(LinkProbes, AWorkerThatIsGoneTakesItsLinksAlong) {
  LinkProbes probes({});
  for (const WorkerId worker : {kFrom, kTo, kFarther}) probes.Add(worker);
  probes.Next(false, Moment(0));
  for (int i = 0; i < 6; ++i) {
    const LinkProbes::Probe probe = BeginProbe(probes, 2);
    ASSERT_TRUE(probes.Take(probe.pair.second, ProbeAnswer(probe.id), Moment(2)).ok());
  }
  EXPECT_EQ(probes.links().size(), 6u);
  BeginProbe(probes, 302);
  probes.Remove(kTo);
  EXPECT_EQ(probes.links().size(), 2u);
  const auto next = probes.Next(false, Moment(303));
  ASSERT_TRUE(next);
  EXPECT_NE(next->pair.first, kTo);
  EXPECT_NE(next->pair.second, kTo);
}

// Workers come and go, requests too, answers are lost: every pair of workers that stay is measured,
// none more often than the interval allows, and no probe begins while requests run.
TEST(LinkProbes, AnyHistory) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    LinkProbes probes({});
    std::set<WorkerId> members;
    std::map<LinkProbes::Pair, Time> measured;
    uint64_t next_worker = 1;
    std::optional<LinkProbes::Probe> open;
    for (int tick = 0; tick < 8000; ++tick) {
      const Time now = Moment(0.25 * tick);
      const bool churns = tick < 4000;
      if (churns && rng.Between(0, 200) == 0 && members.size() < 6) {
        probes.Add(*members.insert(WorkerId(next_worker++)).first);
      }
      if (churns && rng.Between(0, 600) == 0 && members.size() > 2) {
        const WorkerId gone = *members.begin();
        members.erase(members.begin());
        probes.Remove(gone);
        if (open && (open->pair.first == gone || open->pair.second == gone)) open.reset();
      }
      const bool busy = tick % 400 < 100;
      if (const auto probe = probes.Next(busy, now)) {
        EXPECT_FALSE(busy);
        EXPECT_TRUE(members.contains(probe->pair.first) && members.contains(probe->pair.second));
        const auto before = measured.find(probe->pair);
        if (before != measured.end()) {
          EXPECT_GE(now - before->second, Duration::Seconds(300));
        }
        open = probe;
      }
      if (!open || rng.Between(0, 3) != 0) continue;
      if (rng.Between(0, 9) != 0 &&
          probes.Take(open->pair.second, ProbeAnswer(open->id), now).ok()) {
        measured[open->pair] = now;
      }
      open.reset();
    }
    EXPECT_EQ(probes.links().size(), members.size() * (members.size() - 1));
  }
}

TEST(LinkProbes, AsManyWorkersAsTheLimit) {
  LinkProbes probes({});
  for (uint64_t i = 1; i <= 2 * LinkProbeOptions::kWorkersMax; ++i) probes.Add(WorkerId(i));
  probes.Next(false, Moment(0));
  size_t count = 0;
  while (const auto probe = probes.Next(false, Moment(10))) {
    ASSERT_TRUE(probes.Take(probe->pair.second, ProbeAnswer(probe->id), Moment(10)).ok());
    ++count;
  }
  EXPECT_EQ(count, LinkProbeOptions::kWorkersMax * (LinkProbeOptions::kWorkersMax - 1));
}

}  // namespace
}  // namespace millrace::cluster
