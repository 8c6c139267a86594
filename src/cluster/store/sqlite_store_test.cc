// The embedded store: the conformance suite, and tests of what only this store guarantees.
#include "cluster/store/sqlite_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/testing/temp_folder.h"
#include "cluster/store/local_watches.h"
#include "cluster/store/open_store.h"
#include "cluster/store/testing/store_conformance.h"
#include "cluster/store/testing/watch_log.h"

namespace millrace::cluster::testing {
namespace {

const SteadyClock kClock;
// Long enough for a busy machine to keep a lease alive.
#ifdef MILLRACE_SANITIZED
constexpr Duration kShortTtl = Duration::Millis(2000);
#else
constexpr Duration kShortTtl = Duration::Millis(400);
#endif

std::unique_ptr<Store> Open(const std::string& folder) {
  Result<std::unique_ptr<Store>> store =
      OpenSqliteStore({.folder = folder, .survive_power_loss = false}, kClock);
  MR_CHECK(store.ok()) << store.status().ToString();
  return std::move(*store);
}

class SqliteFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> Connect() override { return store_; }
  std::shared_ptr<Store> ConnectElsewhere() override { return nullptr; }
  Duration shortest_ttl() const override { return kShortTtl; }

 private:
  TempFolder folder_;
  std::shared_ptr<Store> store_ = Open(folder_.path());
};

INSTANTIATE_TEST_SUITE_P(Sqlite, StoreConformance,
                         ::testing::Values(StoreKind{
                             "embedded", [] { return std::make_unique<SqliteFixture>(); }}),
                         KindName);

TEST(SqliteStore, OneOwnerAtATime) {
  TempFolder folder;
  auto store = Open(folder.path());
  const auto second = OpenSqliteStore({.folder = folder.path()}, kClock);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  store.reset();
  EXPECT_TRUE(OpenSqliteStore({.folder = folder.path()}, kClock).ok());
}

TEST(SqliteStore, ARestartKeepsEntriesRevisionsAndLeases) {
  TempFolder folder;
  auto store = Open(folder.path());
  const Lease lease = *store->Grant(kShortTtl);
  ASSERT_TRUE(store->Put("member", "x", {.lease = lease.id}).ok());
  ASSERT_TRUE(store->Put("plan", "p").ok());
  const Revision last = *store->Delete("plan");
  store.reset();
  store = Open(folder.path());
  EXPECT_GT(*store->Put("plan", "q"), last) << "a revision must not be used twice";
  EXPECT_TRUE(store->KeepAlive(lease.id).ok()) << "the lease starts again with its full time";
  EXPECT_NE(store->Grant(Duration::Seconds(1))->id, lease.id);
  WatchLog log;
  const auto watch = store->WatchPrefix("member", log.Callback());
  ASSERT_TRUE(
      log.WaitFor([](const WatchLog& l) { return l.snapshots() > 0 && l.known().empty(); }));
  EXPECT_FALSE((*store->Get("member")).has_value());
}

TEST(SqliteStore, AWatcherThatFallsBehindGetsAnErrorAndASnapshot) {
  TempFolder folder;
  auto store = Open(folder.path());
  WatchLog log;
  std::mutex gate;
  auto held = std::make_unique<std::lock_guard<std::mutex>>(gate);
  const auto record = log.Callback();
  const auto watch = store->WatchPrefix("", [&](const WatchUpdate& update) {
    { std::lock_guard wait(gate); }
    record(update);
  });
  for (size_t i = 0; i < kWatchBacklogMax + 100; ++i) {
    ASSERT_TRUE(store->Put("k" + std::to_string(i % 3), std::to_string(i)).ok());
  }
  held.reset();
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) { return l.snapshots() == 2; }));
  EXPECT_EQ(log.last_problem().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(store->Put("end", "x").ok());
  ASSERT_TRUE(log.WaitFor([](const WatchLog& l) { return l.known().contains("end"); }));
  for (int k = 0; k < 3; ++k) {
    const std::string key = "k" + std::to_string(k);
    EXPECT_EQ(log.known().at(key), (*store->Get(key))->value);
  }
}

TEST(SqliteStore, AFileThatIsNotADatabaseIsRefused) {
  TempFolder folder;
  std::ofstream(folder.path() + "/store.sqlite") << std::string(8192, 'x');
  const auto store = OpenSqliteStore({.folder = folder.path()}, kClock);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kDataLoss) << store.status().ToString();
}

TEST(SqliteStore, ABadClusterNameIsRefused) {
  TempFolder folder;
  EXPECT_EQ(OpenSqliteStore({.folder = folder.path(), .cluster = "a/b"}, kClock).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(OpenStore, AnAddressNamesAStore) {
  TempFolder folder;
  const auto store = OpenStore("sqlite:" + folder.path(), "c", {}, kClock);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_TRUE((*store)->Put("a", "b").ok());
  for (const char* bad : {"", "sqlite:", "redis://h:1", "etcd:h:1", "ETCD://h:1"}) {
    EXPECT_EQ(OpenStore(bad, "c", {}, kClock).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(OpenStore("sqlite:x", "c", {.ca_file = "y"}, kClock).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::cluster::testing
