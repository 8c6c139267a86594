// Damage to the object store: an object that is damaged is lost, and nothing else is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/testing/temp_folder.h"
#include "cluster/store/sqlite_db.h"
#include "serve/stored/object_store.h"
#include "serve/stored/object_store_sql.h"
#include "serve/stored/response_records.h"
#include "serve/stored/stored_json.h"
#include "serve/testing/fixtures.h"

namespace millrace::serve {
namespace {

constexpr int kBusyMs = 2000;

void Change(const TempFolder& folder, const char* sql) {
  auto db = cluster::SqliteDb::Open(folder.path() + "/objects.sqlite", kBusyMs);
  ASSERT_TRUE(db.ok()) << db.status().ToString();
  const Status changed = db->Execute(sql);
  ASSERT_TRUE(changed.ok()) << changed.ToString();
}

std::unique_ptr<ObjectStore> OpenIn(const TempFolder& folder) {
  auto store = ObjectStore::Open({.folder = folder.path()});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(*store);
}

StoredObject OpenBatch(const std::string& id) {
  return {.kind = ObjectKind::kBatch,
          .owner = "o",
          .id = id,
          .created_s = 1000,
          .open = true,
          .body = "body of " + id,
          .content = "content",
          .events = "events"};
}

StatusCode CodeOf(ObjectStore& store, const std::string& id) {
  return store.Get(ObjectKind::kBatch, "o", id).status().code();
}

TEST(StoreDamage, ADamagedObjectIsRefusedAndNoOther) {
  for (const char* change : {"body = x'00'", "content = x'00'", "events = x'00'", "created = 1001",
                             "owner = 'p'", "open = 0", "head_checksum = 7", "rest_checksum = 7"}) {
    const TempFolder folder;
    {
      const auto store = OpenIn(folder);
      for (const char* id : {"a", "b"}) ASSERT_TRUE(store->Put(OpenBatch(id)).ok());
    }
    Change(folder, fmt::format("UPDATE objects SET {} WHERE id = 'a'", change).c_str());
    const auto store = OpenIn(folder);
    const StatusCode code = CodeOf(*store, "a");
    EXPECT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kNotFound) << change;
    EXPECT_EQ(CodeOf(*store, "b"), StatusCode::kOk) << change;
    // What the server would go on with: not the damaged one, now and at the next start.
    for (int start = 0; start < 2; ++start) {
      const auto open = store->ListOpen(ObjectKind::kBatch);
      ASSERT_TRUE(open.ok());
      ASSERT_EQ(open->size(), 1u) << change;
      EXPECT_EQ(open->front().id, "b");
    }
    (void)store->Delete(ObjectKind::kBatch, "o", "a").ok();
    EXPECT_EQ(CodeOf(*store, "a"), StatusCode::kNotFound) << change;
    ASSERT_TRUE(store->Put(OpenBatch("a")).ok()) << "it can be made again";
    EXPECT_EQ(CodeOf(*store, "a"), StatusCode::kOk);
  }
}

TEST(StoreDamage, ListsLeaveItOut) {
  const TempFolder folder;
  {
    const auto store = OpenIn(folder);
    for (const char* id : {"a", "b"}) ASSERT_TRUE(store->Put(OpenBatch(id)).ok());
  }
  Change(folder, "UPDATE objects SET body = x'00' WHERE id = 'b'");
  const auto list = OpenIn(folder)->List(ObjectKind::kBatch, "o", "", 10);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().id, "a");
}

TEST(StoreDamage, AResultOfABatchIsLeftOut) {
  const TempFolder folder;
  {
    const auto store = OpenIn(folder);
    ASSERT_TRUE(store->PutBatchLine("b", {.number = 1, .text = "one"}).ok());
    ASSERT_TRUE(store->PutBatchLine("b", {.number = 2, .text = "two"}).ok());
  }
  Change(folder, "UPDATE batch_lines SET text = x'00' WHERE number = 1");
  const auto lines = OpenIn(folder)->BatchLines("b");
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 1u);
  EXPECT_EQ(lines->front().text, "two");
}

TEST(StoreDamage, AWrongSizeTakesNoRoom) {
  const TempFolder folder;
  ASSERT_TRUE(OpenIn(folder)->Put(OpenBatch("a")).ok());
  Change(folder, "UPDATE objects SET bytes = 9000000000000000000");
  ASSERT_TRUE(OpenIn(folder)->Put(OpenBatch("b")).ok());
}

// What 0.2 wrote.
TEST(StoreDamage, AStoreWithoutChecksumsIsReadAndGetsThem) {
  const TempFolder folder;
  Change(folder, kSchema);
  Change(folder,
         "INSERT INTO objects(kind, owner, id, created, open, bytes, body, content, events) "
         "VALUES(3, 'o', 'a', 1000, 1, 1, x'31', x'', x'');"
         "INSERT INTO batch_lines VALUES('a', 1, 0, x'31')");
  for (int start = 0; start < 2; ++start) {
    const auto store = OpenIn(folder);
    EXPECT_EQ(CodeOf(*store, "a"), StatusCode::kOk);
    EXPECT_EQ(store->BatchLines("a")->size(), 1u);
    if (start == 0) {
      ASSERT_TRUE(store->Put(OpenBatch("b")).ok());
    }
    EXPECT_EQ(CodeOf(*store, "b"), StatusCode::kOk);
  }
  Change(folder, "INSERT INTO formats VALUES(3)");
  const auto later = ObjectStore::Open({.folder = folder.path()});
  EXPECT_EQ(later.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(later.status().message().find("format 3"), std::string::npos);
}

// Single bits anywhere behind the file's header: the store opens, or says why not; each object is
// the one that was stored, or refused.
TEST(StoreDamage, FlippedBitsOfTheFileNeverGiveAnotherObject) {
  const TempFolder folder;
  const std::string path = folder.path() + "/objects.sqlite";
  {
    const auto store = OpenIn(folder);
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(store->Put(OpenBatch(fmt::format("b{}", i))).ok());
  }
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  Rng rng(1);
  int opened = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::string bytes = whole;
    bytes[100 + rng.Next() % (bytes.size() - 100)] ^= static_cast<char>(1U << (rng.Next() % 8));
    std::ofstream(path, std::ios::binary) << bytes;
    auto store = ObjectStore::Open({.folder = folder.path()});
    if (!store.ok()) continue;
    ++opened;
    (void)(*store)->ListOpen(ObjectKind::kBatch).ok();
    for (int i = 0; i < 30; ++i) {
      const StoredObject was = OpenBatch(fmt::format("b{}", i));
      const auto found = (*store)->Get(ObjectKind::kBatch, "o", was.id);
      if (!found.ok()) continue;
      EXPECT_EQ(found->body, was.body);
      EXPECT_EQ(found->content, was.content);
    }
  }
  EXPECT_GT(opened, 150);
}

// ---- a server

StoredObject Row(ObjectKind kind, const std::string& id, const std::string& body) {
  return {.kind = kind,
          .id = id,
          .created_s = std::time(nullptr),  // younger than what is dropped
          .open = true,
          .body = body,
          .content = "{"};
}

TEST(StoreDamage, TheServerStartsAndRefusesWhatMakesNoSense) {
  const std::shared_ptr<ObjectStore> store = ObjectStore::Open({}).value();
  for (const char* body : {"", "{", "[]", "{\"id\": 1}", "{\"id\": \"x\"}", "{\"id\": \"y\"}"}) {
    ASSERT_TRUE(store->Put(Row(ObjectKind::kResponse, "x", body)).ok());
    ASSERT_TRUE(store->Put(Row(ObjectKind::kBatch, "x", body)).ok());
    StoredObject file = Row(ObjectKind::kFile, "x", body);
    file.open = false;
    ASSERT_TRUE(store->Put(file).ok());
    TestServerOptions options = Reciting("hello");
    options.service.store = store;
    TestServer server(options);
    EXPECT_TRUE(store->ListOpen(ObjectKind::kResponse)->empty()) << body;
    EXPECT_TRUE(store->ListOpen(ObjectKind::kBatch)->empty()) << body;
    const Json error = server.Get("/v1/responses/x", 500)["error"];
    EXPECT_EQ(error["code"], "object_damaged") << body;
    EXPECT_NE(error["message"].get<std::string>().find("'x'"), std::string::npos);
    server.Get("/v1/responses/x/input_items", 500);
    server.Get("/v1/responses/x?stream=true", 500);
    server.Get("/v1/batches/x", 500);
    server.Get("/v1/batches");
    server.Get("/v1/files");
    server.Call("/v1/batches/x/cancel", nullptr, 500);
    server.Call("/v1/responses/x/cancel", nullptr, 500);
    server.Call("/v1/responses", {{"input", "y"}, {"previous_response_id", "x"}}, 500);
    const Json next = server.Call("/v1/responses", {{"input", "y"}});
    server.Get("/v1/responses/" + next["id"].get<std::string>());
  }
}

TEST(StoreDamage, ARecordHasWhatTheServerNeeds) {
  const StoredObject good = ObjectOf({.id = "x",
                                      .response = {{"id", "x"},
                                                   {"status", "completed"},
                                                   {"output", Json::array({Json::object()})}},
                                      .input = OrderedJson::array({OrderedJson::object()})});
  ASSERT_TRUE(RecordOf(good).ok()) << RecordOf(good).status().ToString();
  const auto refused = [&](const std::string& from, const std::string& to) {
    StoredObject bad = good;
    for (std::string* text : {&bad.body, &bad.content}) {
      const size_t at = text->find(from);
      if (at != std::string::npos) text->replace(at, from.size(), to);
    }
    EXPECT_NE(bad.body + bad.content, good.body + good.content) << from;
    EXPECT_EQ(RecordOf(bad).status().code(), StatusCode::kDataLoss) << from << " " << to;
  };
  refused("\"completed\"", "7");
  refused("\"output\":[{}]", "\"output\":[7]");
  refused("\"input\":[{}]", "\"input\":7");
  refused("\"input\":[{}]", "\"input\":[" + std::string(100'000, '[') + "]");
  refused("\"streams\":false", "\"streams\":0");
  refused("\"previous\":\"\"", "\"previous\":null");
  refused("\"chat\":\"\"", "\"chat\":[]");
}

}  // namespace
}  // namespace millrace::serve
