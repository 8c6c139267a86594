// The store against a real etcd: the conformance suite, and clients while members are killed.
#include "cluster/store/etcd_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cluster/store/etcd_client.h"
#include "cluster/store/leader_election.h"
#include "cluster/store/testing/etcd_process.h"
#include "cluster/store/testing/store_conformance.h"
#include "cluster/store/testing/watch_log.h"

namespace millrace::cluster::testing {
namespace {

constexpr Duration kLong = Duration::Seconds(60);

std::shared_ptr<Store> Open(const std::vector<std::string>& endpoints, const std::string& cluster) {
  auto store = OpenEtcdStore({.endpoints = endpoints, .cluster = cluster});
  MR_CHECK(store.ok()) << store.status().ToString();
  return std::move(*store);
}

// Retries until the value is written. A failed write may have been applied, so it is read back.
bool PutOnce(Store& store, const std::string& key, const std::string& value) {
  const SteadyClock clock;
  const Time start = clock.Now();
  while (clock.Now() - start < kLong) {
    if (store.Put(key, value, {.timeout = Duration::Seconds(2)}).ok()) return true;
    const auto now = store.Get(key, kLong);
    if (now.ok() && *now && (*now)->value == value) return true;
  }
  return false;
}

// One etcd for the whole suite; each test uses its own cluster name.
class EtcdFixture : public StoreFixture {
 public:
  EtcdFixture() : cluster_("test-" + std::to_string(++tests_)) {
    if (!etcd_) etcd_ = std::make_unique<EtcdProcess>(1);
    MR_CHECK(Connect()->Get("ready", kLong).ok()) << "etcd did not start";
  }
  std::shared_ptr<Store> Connect() override { return Open(etcd_->endpoints(), cluster_); }
  std::shared_ptr<Store> ConnectElsewhere() override {
    return Open(etcd_->endpoints(), cluster_ + "-elsewhere");
  }
  Duration shortest_ttl() const override { return Duration::Seconds(2); }

  static void Stop() { etcd_.reset(); }

 private:
  static inline std::unique_ptr<EtcdProcess> etcd_;
  static inline int tests_ = 0;
  const std::string cluster_;
};

class StopEtcd : public ::testing::Environment {
 public:
  void TearDown() override { EtcdFixture::Stop(); }
};
const auto* const kStopEtcd = ::testing::AddGlobalTestEnvironment(new StopEtcd);

INSTANTIATE_TEST_SUITE_P(Etcd, StoreConformance,
                         ::testing::Values(StoreKind{
                             "etcd", [] { return std::make_unique<EtcdFixture>(); }}),
                         KindName);

TEST(EtcdStore, AnUnreachableEtcdIsReportedWithinTheTimeout) {
  auto store = Open({"127.0.0.1:1"}, "c");
  const SteadyClock clock;
  const Time start = clock.Now();
  EXPECT_EQ(store->Get("a", Duration::Millis(300)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->Put("a", "b", {.timeout = Duration::Millis(300)}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_LT((clock.Now() - start).seconds(), 30);
  WatchLog log;
  const auto watch = store->WatchPrefix("", log.Callback());  // can be destroyed without any update
}

TEST(EtcdStore, InvalidOptionsAreRefused) {
  for (const EtcdStoreOptions& options :
       {EtcdStoreOptions{.endpoints = {}}, EtcdStoreOptions{.endpoints = {"host"}},
        EtcdStoreOptions{.endpoints = {":1"}}, EtcdStoreOptions{.endpoints = {"host:"}},
        EtcdStoreOptions{.endpoints = {"h:1"}, .cluster = "a/b"},
        EtcdStoreOptions{.endpoints = {"h:1"}, .tls = {.cert_file = "x"}},
        EtcdStoreOptions{.endpoints = {"h:1"}, .tls = {.cert_file = "x", .key_file = "y"}}}) {
    EXPECT_EQ(OpenEtcdStore(options).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(EtcdStore, ClientAndWatchContinueAfterAKillAndRestart) {
  EtcdProcess etcd(1);
  auto store = Open(etcd.endpoints(), "c");
  ASSERT_TRUE(store->Get("a", kLong).ok());
  WatchLog log;
  const auto watch = store->WatchPrefix("w/", log.Callback());
  ASSERT_TRUE(log.WaitForSnapshot());
  std::set<std::string> written;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) {
      const std::string value = std::to_string(round) + "." + std::to_string(i);
      ASSERT_TRUE(PutOnce(*store, "w/key", value));
      written.insert(value);
    }
    etcd.Kill(0);
    EXPECT_EQ(store->Put("w/key", "never", {.timeout = Duration::Millis(200)}).status().code(),
              StatusCode::kUnavailable);
    etcd.Start(0);
  }
  ASSERT_TRUE(PutOnce(*store, "w/end", "x"));
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) { return l.known().contains("w/end"); }));
  EXPECT_EQ(log.snapshots(), 1) << "the watch continued where it was";
  std::set<std::string> delivered;
  for (const WatchEvent& event : log.events()) delivered.insert(event.entry.value);
  written.insert("x");
  EXPECT_EQ(delivered, written);
  EXPECT_EQ(log.events().size(), written.size()) << "no duplicates";
}

TEST(EtcdStore, AWatchThatMissedCompactedChangesReportsItAndListsAgain) {
  EtcdProcess etcd(1);
  auto store = Open(etcd.endpoints(), "c");
  ASSERT_TRUE(PutOnce(*store, "w/gone", "x"));
  WatchLog log;
  std::mutex gate;
  const auto deliver = log.Callback();
  auto closed = std::make_unique<std::lock_guard<std::mutex>>(gate);
  std::atomic<bool> waiting = false;
  // The watch is held in its snapshot callback until the changes after it are compacted.
  const auto watch = store->WatchPrefix("w/", [&](const WatchUpdate& update) {
    waiting = true;
    { std::lock_guard wait(gate); }
    deliver(update);
  });
  while (!waiting) std::this_thread::yield();
  ASSERT_TRUE(store->Delete("w/gone").ok());
  const Revision last = *store->Put("w/new", "y");
  auto client = EtcdClient::Create({.endpoints = etcd.endpoints()});
  ASSERT_TRUE(client.ok());
  etcdserverpb::CompactionRequest request;
  request.set_revision(last.value());
  etcdserverpb::CompactionResponse response;
  ASSERT_TRUE((*client)
                  ->Call(kLong, EtcdClient::Repeat::kNo,
                         [&](EtcdClient::Member& member, grpc::ClientContext& context) {
                           return member.kv->Compact(&context, request, &response);
                         })
                  .ok());
  closed.reset();
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) { return l.snapshots() == 2; }));
  EXPECT_EQ(log.last_problem().code(), StatusCode::kDataLoss);
  EXPECT_EQ(log.known(), (std::map<std::string, std::string>{{"w/new", "y"}}));
  ASSERT_TRUE(store->Put("w/after", "z").ok());
  EXPECT_TRUE(log.WaitFor([](const WatchLog& l) { return l.known().contains("w/after"); }));
}

TEST(EtcdStore, OneOfThreeMembersMayBeKilled) {
  EtcdProcess etcd(3);
  auto store = Open(etcd.endpoints(), "c");
  ASSERT_TRUE(store->Get("a", kLong).ok());
  WatchLog log;
  const auto watch = store->WatchPrefix("n/", log.Callback());
  ASSERT_TRUE(log.WaitForSnapshot());
  const SteadyClock clock;
  LeaderElection election(*store, clock, {.candidate = "one", .lease_ttl = Duration::Seconds(10)},
                          [](const auto&, const Status&) {});
  election.Campaign();
  int acknowledged = 0;
  Duration longest;
  for (int killed = 0; killed < etcd.members(); ++killed) {
    for (int i = 0; i < 10; ++i) {
      const std::string key = "n/" + std::to_string(acknowledged);
      const Time start = clock.Now();
      ASSERT_TRUE(PutOnce(*store, key, key));
      longest = std::max(longest, clock.Now() - start);
      ++acknowledged;
      if (i == 4) etcd.Kill(killed);  // each member once, so the leader too
    }
    etcd.Start(killed);
  }
  std::printf("the longest write across %d kills took %.2f s\n", etcd.members(), longest.seconds());
  const Result<Listing> all = store->List("n/", kLong);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->entries.size(), static_cast<size_t>(acknowledged)) << "a write was lost";
  ASSERT_TRUE(log.WaitFor(
      [&](const WatchLog& l) { return l.known().size() == static_cast<size_t>(acknowledged); }));
  EXPECT_EQ(log.snapshots(), 1);
}

}  // namespace
}  // namespace millrace::cluster::testing
