// The contract of cluster/store/store.h, tested for every kind of store. sqlite_store_test.cc and
// etcd_store_test.cc instantiate the suite.
#include "cluster/store/testing/store_conformance.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "cluster/store/testing/watch_log.h"

namespace millrace::cluster::testing {

TEST_P(StoreConformance, ReadsWhatWasWrittenWithItsRevisions) {
  auto store = Connect();
  ASSERT_FALSE((*store->Get("a")).has_value());
  const std::string binary("\0x\xff\n", 4);
  const Revision first = *store->Put("a", binary);
  const Revision second = *store->Put("a", "");
  const Revision other = *store->Put("b", "x");
  EXPECT_LT(first, second);
  EXPECT_LT(second, other);
  const auto a = *store->Get("a");
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(a->key, "a");
  EXPECT_EQ(a->value, "");
  EXPECT_EQ(a->created, first);
  EXPECT_EQ(a->modified, second);
  EXPECT_FALSE(a->lease.has_value());

  const Revision gone = *store->Delete("a");
  EXPECT_LT(other, gone);
  EXPECT_FALSE((*store->Get("a")).has_value());
  EXPECT_EQ(store->Delete("a")->value(), gone.value()) << "deleting nothing changes nothing";
  const Revision again = *store->Put("a", binary);
  EXPECT_EQ((*store->Get("a"))->created, again) << "the key is created again";
  EXPECT_EQ((*store->Get("a"))->value, binary);
}

TEST_P(StoreConformance, ListsByPrefixForKeysWithAnyBytes) {
  auto store = Connect();
  const std::vector<std::string> keys = {
      "a", "a%", "a/1", "a/2",  "a\xff",    "a\xff\xff",           "ab",
      "b", "_",  "*",   "\xff", "\xff\xff", std::string("n\0l", 3)};
  for (const std::string& key : keys) ASSERT_TRUE(store->Put(key, "of " + key).ok());
  for (const std::string& prefix : {std::string("a"), std::string("a/"), std::string("a%"),
                                    std::string("_"), std::string("\xff"), std::string("a\xff"),
                                    std::string("n\0", 2), std::string("zz"), std::string("")}) {
    std::set<std::string> expected;
    for (const std::string& key : keys) {
      if (key.starts_with(prefix)) expected.insert(key);
    }
    Result<Listing> listing = store->List(prefix);
    ASSERT_TRUE(listing.ok()) << listing.status().ToString();
    std::vector<std::string> listed;
    for (const KeyValue& entry : listing->entries) {
      listed.push_back(entry.key);
      EXPECT_EQ(entry.value, "of " + entry.key);
    }
    EXPECT_EQ(listed, std::vector<std::string>(expected.begin(), expected.end())) << prefix;
  }
}

TEST_P(StoreConformance, RefusesArgumentsBeyondTheLimits) {
  auto store = Connect();
  const std::string key(kStoreKeyBytesMax, 'k');
  const std::string value(kStoreValueBytesMax, 'v');
  ASSERT_TRUE(store->Put(key, value).ok());
  EXPECT_EQ((*store->Get(key))->value, value);
  for (const Status& status :
       {store->Put(key + "k", "").status(), store->Put("", "").status(),
        store->Put("k", value + "v").status(), store->Get("").status(), store->Delete("").status(),
        store->Grant(Duration{}).status(), store->CompareAndPut("", std::nullopt, "").status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  }
}

TEST_P(StoreConformance, ListsMoreThanOneMessageHolds) {
  auto store = Connect();
  const std::string value(kStoreValueBytesMax, 'v');
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(store->Put("big/" + std::to_string(i), value).ok());
  Result<Listing> listing = store->List("big/");
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  ASSERT_EQ(listing->entries.size(), 6u);
  for (const KeyValue& entry : listing->entries) EXPECT_EQ(entry.value, value);
}

TEST_P(StoreConformance, AnotherClusterSeesNothing) {
  auto store = Connect();
  auto other = fixture().ConnectElsewhere();
  if (!other) return;  // this kind of store holds one cluster
  WatchLog log;
  const auto watch = other->WatchPrefix("", log.Callback());
  ASSERT_TRUE(log.WaitForSnapshot());
  ASSERT_TRUE(store->Put("a", "mine").ok());
  EXPECT_FALSE((*other->Get("a")).has_value());
  ASSERT_TRUE(other->Put("a", "theirs").ok());
  EXPECT_EQ((*store->Get("a"))->value, "mine");
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) { return !l.events().empty(); }));
  EXPECT_EQ(log.events().front().entry.value, "theirs");
}

TEST_P(StoreConformance, CompareAndPutNeedsTheExpectedRevision) {
  auto store = Connect();
  const Result<Revision> created = store->CompareAndPut("a", std::nullopt, "1");
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  EXPECT_EQ(store->CompareAndPut("a", std::nullopt, "2").status().code(),
            StatusCode::kFailedPrecondition);
  const Result<Revision> changed = store->CompareAndPut("a", *created, "2");
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(store->CompareAndPut("a", *created, "3").status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->CompareAndPut("b", *created, "3").status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ((*store->Get("a"))->value, "2");
  EXPECT_FALSE((*store->Get("b")).has_value());
}

TEST_P(StoreConformance, OneOfSeveralRacingWritersWinsEachRound) {
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::set<Revision> revisions;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      auto store = Connect();
      for (int done = 0; done < kRounds;) {
        const auto before = *store->Get("counter");
        std::optional<Revision> expected;
        if (before) expected = before->modified;
        const int next = before ? std::stoi(before->value) + 1 : 1;
        const auto written = store->CompareAndPut("counter", expected, std::to_string(next));
        if (!written.ok()) {
          ASSERT_EQ(written.status().code(), StatusCode::kFailedPrecondition);
          continue;
        }
        ++done;
        std::lock_guard lock(mutex);
        revisions.insert(*written);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*Connect()->Get("counter"))->value, std::to_string(kThreads * kRounds));
  EXPECT_EQ(revisions.size(), static_cast<size_t>(kThreads * kRounds));
}

TEST_P(StoreConformance, AFencedWriteNeedsTheKeyOfItsFence) {
  auto store = Connect();
  const Revision term = *store->CompareAndPut("leader", std::nullopt, "one");
  WriteOptions fenced{.fence = Fence{"leader", term}};
  EXPECT_TRUE(store->Put("plan", "1", fenced).ok());
  ASSERT_TRUE(store->Put("leader", "one, renamed").ok());
  const Result<Revision> second =
      store->CompareAndPut("plan", (*store->Get("plan"))->modified, "2", fenced);
  EXPECT_TRUE(second.ok()) << "writing the key again does not create it again";
  ASSERT_TRUE(store->Delete("leader").ok());
  EXPECT_EQ(store->Put("plan", "3", fenced).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store->CompareAndPut("leader", std::nullopt, "two").ok());
  for (const Status& status : {store->Put("plan", "3", fenced).status(),
                               store->CompareAndPut("plan", *second, "3", fenced).status(),
                               store->CompareAndPut("new", std::nullopt, "3", fenced).status(),
                               store->Delete("plan", fenced).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
  }
  EXPECT_EQ((*store->Get("plan"))->value, "2");
  EXPECT_FALSE((*store->Get("new")).has_value());
}

TEST_P(StoreConformance, KeysOfAnEndedLeaseAreDeletedAndTheWatchReportsIt) {
  auto store = Connect();
  WatchLog log;
  const auto watch = store->WatchPrefix("w/", log.Callback());
  ASSERT_TRUE(log.WaitForSnapshot());
  const Time begun = SteadyClock().Now();
  const Lease lease = *store->Grant(fixture().shortest_ttl());
  ASSERT_GE(lease.ttl, fixture().shortest_ttl());
  ASSERT_TRUE(store->Put("w/1", "x", {.lease = lease.id}).ok());
  ASSERT_TRUE(store->Put("w/2", "y", {.lease = lease.id}).ok());
  ASSERT_TRUE(store->Put("w/stays", "z").ok());
  ASSERT_TRUE(store->Put("w/2", "detached").ok());
  EXPECT_EQ((*store->Get("w/1"))->lease, lease.id);
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) {
    return l.events().size() >= 5 && l.events().back().kind == WatchEvent::Kind::kDelete;
  }));
  EXPECT_GE(SteadyClock().Now() - begun, lease.ttl) << "the lease must not end early";
  EXPECT_EQ(log.events().back().entry.key, "w/1");
  EXPECT_FALSE((*store->Get("w/1")).has_value());
  EXPECT_EQ((*store->Get("w/2"))->value, "detached")
      << "a write without the lease detaches the key";
  EXPECT_EQ(store->KeepAlive(lease.id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Revoke(lease.id).code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Put("w/1", "late", {.lease = lease.id}).status().code(), StatusCode::kNotFound);
}

TEST_P(StoreConformance, ALeaseKeptAliveLastsAndARevokedOneEndsAtOnce) {
  auto store = Connect();
  const Lease lease = *store->Grant(fixture().shortest_ttl());
  const Lease unkept = *store->Grant(fixture().shortest_ttl());
  ASSERT_TRUE(store->Put("kept", "x", {.lease = lease.id}).ok());
  ASSERT_TRUE(store->Put("unkept", "x", {.lease = unkept.id}).ok());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((*store->Get("unkept")).has_value() && std::chrono::steady_clock::now() < deadline) {
    const Result<Duration> ttl = store->KeepAlive(lease.id);
    ASSERT_TRUE(ttl.ok()) << ttl.status().ToString();
    EXPECT_GE(*ttl, fixture().shortest_ttl());
    std::this_thread::sleep_for(std::chrono::nanoseconds(lease.ttl.ns / 10));
  }
  EXPECT_FALSE((*store->Get("unkept")).has_value());
  EXPECT_TRUE((*store->Get("kept")).has_value());
  ASSERT_TRUE(store->Revoke(lease.id).ok());
  EXPECT_FALSE((*store->Get("kept")).has_value());
}

TEST_P(StoreConformance, AWatchReportsEachChangeOnceInOrder) {
  auto store = Connect();
  ASSERT_TRUE(store->Put("w/before", "0").ok());
  WatchLog log;
  const auto watch = store->WatchPrefix("w/", log.Callback());
  ASSERT_TRUE(log.WaitForSnapshot());
  constexpr int kWriters = 4;
  const int writes = fixture().watched_writes();
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      auto mine = Connect();
      for (int i = w; i < writes; i += kWriters) {
        ASSERT_TRUE(mine->Put("w/" + std::to_string(i % 50), std::to_string(i)).ok());
        if (i % 10 == 0) {
          ASSERT_TRUE(mine->Put("elsewhere", "x").ok());
        }
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  ASSERT_TRUE(store->Put("w/last", "x").ok());
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) {
    return !l.events().empty() && l.events().back().entry.key == "w/last";
  }));
  EXPECT_EQ(log.snapshots(), 1);
  ASSERT_EQ(log.events().size(), static_cast<size_t>(writes + 1));
  Revision last;
  std::set<std::string> values;
  for (const WatchEvent& event : log.events()) {
    EXPECT_LT(last, event.entry.modified);
    last = event.entry.modified;
    values.insert(event.entry.value);
  }
  EXPECT_EQ(values.size(), static_cast<size_t>(writes + 1)) << "no value twice, none missing";
  const Listing now = *store->List("w/");
  std::map<std::string, std::string> listed;
  for (const KeyValue& entry : now.entries) listed[entry.key] = entry.value;
  EXPECT_EQ(log.known(), listed);
}

TEST_P(StoreConformance, AWatchStartedDuringWritesMissesNothing) {
  auto store = Connect();
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      ASSERT_TRUE(store->Put("w/" + std::to_string(i % 7), std::to_string(i)).ok());
      if (i % 3 == 0) {
        ASSERT_TRUE(store->Delete("w/" + std::to_string((i + 3) % 7)).ok());
      }
    }
  });
  std::vector<std::unique_ptr<WatchLog>> logs;
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 5; ++i) {
    logs.push_back(std::make_unique<WatchLog>());
    watches.push_back(store->WatchPrefix("w/", logs.back()->Callback()));
    EXPECT_TRUE(logs.back()->WaitForSnapshot());
  }
  stop = true;
  writer.join();
  ASSERT_TRUE(store->Put("w/end", "x").ok());
  std::map<std::string, std::string> listed;
  const Listing now = *store->List("w/");
  for (const KeyValue& entry : now.entries) listed[entry.key] = entry.value;
  for (const auto& log : logs) {
    ASSERT_TRUE(log->WaitFor([](const WatchLog& l) { return l.known().contains("w/end"); }));
    EXPECT_EQ(log->known(), listed);
  }
}

}  // namespace millrace::cluster::testing
