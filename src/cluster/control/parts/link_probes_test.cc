#include "cluster/control/parts/link_probes.h"

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
  return probe.value_or(LinkProbes::Probe{ProbeId(), {kFrom, kTo}});
}

// Measures every link that is due at `now`.
size_t TakeAll(LinkProbes& probes, double now) {
  size_t count = 0;
  while (const auto probe = probes.Next(false, Moment(now))) {
    EXPECT_TRUE(probes.Take(probe->by(), ProbeAnswer(probe->id), Moment(now)).ok());
    ++count;
  }
  return count;
}

// Two workers, idle since Moment(0). The next link is that from kFrom to kTo.
LinkProbes TwoWorkers() {
  LinkProbes probes({});
  probes.Next(false, Moment(0));
  probes.Add(kFrom);
  EXPECT_EQ(TakeAll(probes, 2), 2u);
  probes.Add(kTo);
  const LinkProbes::Probe probe = BeginProbe(probes, 2);
  EXPECT_EQ(probe.pair, LinkProbes::Pair(std::nullopt, kTo));
  EXPECT_TRUE(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).ok());
  return probes;
}

TEST(LinkProbes, OneAtATimeAndOnlyAfterAQuietTime) {
  LinkProbes probes({});
  probes.Add(kFrom);
  EXPECT_FALSE(probes.Next(true, Moment(1)));
  EXPECT_FALSE(probes.Next(false, Moment(2))) << "a request ran a moment ago";
  EXPECT_FALSE(probes.Next(false, Moment(3.9)));
  const LinkProbes::Probe first = BeginProbe(probes, 4);
  EXPECT_FALSE(probes.Next(false, Moment(5))) << "one is in progress";
  EXPECT_TRUE(probes.Take(first.by(), ProbeAnswer(first.id), Moment(5)).ok());
  EXPECT_EQ(probes.links().at(first.pair).bytes_per_s, 1e9);
  EXPECT_EQ(probes.links().at(first.pair).at, Moment(5));
  const LinkProbes::Probe second = BeginProbe(probes, 6);
  EXPECT_NE(second.pair, first.pair);
  EXPECT_TRUE(probes.Take(second.by(), ProbeAnswer(second.id), Moment(6)).ok());
  EXPECT_FALSE(probes.Next(false, Moment(304.9)));
  EXPECT_EQ(BeginProbe(probes, 305).pair, first.pair) << "the oldest is measured again";
}

TEST(LinkProbes, AWorkerMeasuresBothLinksWithTheController) {
  LinkProbes probes({});
  probes.Add(kFrom);
  probes.Next(false, Moment(0));
  for (const LinkProbes::Pair& pair :
       {LinkProbes::Pair{std::nullopt, kFrom}, LinkProbes::Pair{kFrom, std::nullopt}}) {
    const LinkProbes::Probe probe = BeginProbe(probes, 2);
    EXPECT_EQ(probe.pair, pair);
    EXPECT_EQ(probe.by(), kFrom);
    EXPECT_EQ(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).code(), StatusCode::kNotFound);
    EXPECT_TRUE(probes.Take(kFrom, ProbeAnswer(probe.id, 2e-3, 1e8), Moment(2)).ok());
    EXPECT_EQ(probes.links().at(pair).latency_s, 2e-3);
  }
  EXPECT_FALSE(probes.Next(false, Moment(3)));
  probes.Remove(kFrom);
  EXPECT_TRUE(probes.links().empty());
  EXPECT_FALSE(probes.Next(false, Moment(1000)));
}

TEST(LinkProbes, TheReceiverMeasuresTheLinkBetweenWorkers) {
  LinkProbes probes = TwoWorkers();
  for (const LinkProbes::Pair& pair :
       {LinkProbes::Pair{kFrom, kTo}, {kTo, std::nullopt}, {kTo, kFrom}}) {
    const LinkProbes::Probe probe = BeginProbe(probes, 3);
    EXPECT_EQ(probe.pair, pair);
    EXPECT_EQ(probe.by(), pair.second.value_or(kTo));
    EXPECT_TRUE(probes.Take(probe.by(), ProbeAnswer(probe.id), Moment(3)).ok());
  }
}

TEST(LinkProbes, AbsurdNumbersAreRefusedAndTheOldOnesStay) {
  LinkProbes probes = TwoWorkers();
  EXPECT_EQ(TakeAll(probes, 3), 3u);
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
        probes.Take(probe.by(), ProbeAnswer(probe.id, latency, rate), Moment(now));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << latency << " " << rate;
    now += 61;
  }
  for (const auto& [pair, link] : probes.links()) EXPECT_EQ(link.latency_s, 1e-3);
  const LinkProbes::Probe probe = BeginProbe(probes, now);
  LinkProbed failed = ProbeAnswer(probe.id);
  failed.status = Unavailable("busy");
  EXPECT_EQ(probes.Take(probe.by(), failed, Moment(now)).message(), "busy");
}

TEST(LinkProbes, OnlyTheAskedWorkerAnswersAndOnlyOnce) {
  LinkProbes probes = TwoWorkers();
  const LinkProbes::Probe probe = BeginProbe(probes, 2);
  EXPECT_EQ(probes.Take(kFrom, ProbeAnswer(probe.id), Moment(2)).code(), StatusCode::kNotFound);
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(ProbeId(99)), Moment(2)).code(), StatusCode::kNotFound);
  EXPECT_TRUE(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).ok());
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(probe.id), Moment(2)).code(), StatusCode::kNotFound);
}

TEST(LinkProbes, AProbeWithoutAnswerIsGivenUp) {
  LinkProbes probes = TwoWorkers();
  const LinkProbes::Probe silent = BeginProbe(probes, 2);
  EXPECT_FALSE(probes.Next(false, Moment(31.9)));
  const LinkProbes::Probe next = BeginProbe(probes, 32);
  EXPECT_NE(next.pair, silent.pair) << "the silent one waits";
  EXPECT_EQ(probes.Take(kTo, ProbeAnswer(silent.id), Moment(33)).code(), StatusCode::kNotFound);
}

TEST(LinkProbes, AWorkerThatIsGoneTakesItsLinksAlong) {
  LinkProbes probes({});
  for (const WorkerId worker : {kFrom, kTo, kFarther}) probes.Add(worker);
  probes.Next(false, Moment(0));
  EXPECT_EQ(TakeAll(probes, 2), 12u);
  ASSERT_TRUE(probes.Take(kFrom, ProbeAnswer(BeginProbe(probes, 302).id), Moment(302)).ok());
  EXPECT_EQ(BeginProbe(probes, 302).by(), kTo);
  probes.Remove(kTo);
  EXPECT_EQ(probes.links().size(), 6u);
  const auto next = probes.Next(false, Moment(303));
  ASSERT_TRUE(next);
  EXPECT_NE(next->pair.first, kTo);
  EXPECT_NE(next->pair.second, kTo);
}

// Workers come and go, requests too, answers are lost: every link of the workers that stay is
// measured, none more often than the interval allows, and no probe begins while requests run.
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
        for (const LinkProbes::End end : {probe->pair.first, probe->pair.second}) {
          EXPECT_TRUE(!end || members.contains(*end));
        }
        EXPECT_NE(probe->pair.first, probe->pair.second);
        const auto before = measured.find(probe->pair);
        if (before != measured.end()) {
          EXPECT_GE(now - before->second, Duration::Seconds(300));
        }
        open = probe;
      }
      if (!open || rng.Between(0, 3) != 0) continue;
      if (rng.Between(0, 9) != 0 && probes.Take(open->by(), ProbeAnswer(open->id), now).ok()) {
        measured[open->pair] = now;
      }
      open.reset();
    }
    EXPECT_EQ(probes.links().size(), members.size() * (members.size() + 1));
  }
}

TEST(LinkProbes, AsManyWorkersAsTheLimit) {
  LinkProbes probes({});
  for (uint64_t i = 1; i <= 2 * LinkProbeOptions::kWorkersMax; ++i) probes.Add(WorkerId(i));
  probes.Next(false, Moment(0));
  EXPECT_EQ(TakeAll(probes, 10),
            LinkProbeOptions::kWorkersMax * (LinkProbeOptions::kWorkersMax + 1));
}

}  // namespace
}  // namespace millrace::cluster
