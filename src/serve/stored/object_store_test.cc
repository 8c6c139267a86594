#include "serve/stored/object_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/testing/temp_folder.h"

namespace millrace::serve {
namespace {

StoredObject Response(const std::string& owner, const std::string& id, size_t bytes = 10) {
  return {.owner = owner, .id = id, .created_s = 1000, .body = std::string(bytes, 'b')};
}

StoredObject File(const std::string& owner, const std::string& id, size_t bytes) {
  return {.kind = ObjectKind::kFile, .owner = owner, .id = id, .content = std::string(bytes, 'f')};
}

std::unique_ptr<ObjectStore> OpenOrDie(const ObjectStoreOptions& options = {}) {
  auto store = ObjectStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(*store);
}

bool Has(ObjectStore& store, const std::string& owner, const std::string& id,
         ObjectKind kind = ObjectKind::kResponse) {
  return store.Get(kind, owner, id).ok();
}

TEST(ObjectStore, KeepsEveryByteOfAnObject) {
  const auto store = OpenOrDie();
  StoredObject object = Response("alice", "r1");
  object.content = std::string("\0\xff'; DROP TABLE objects; --", 27);
  object.events = "event: a\n\n";
  object.open = true;
  ASSERT_TRUE(store->Put(object).ok());
  const auto found = store->Get(ObjectKind::kResponse, "alice", "r1");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->content, object.content);
  EXPECT_EQ(found->events, object.events);
  EXPECT_EQ(found->created_s, 1000);
  EXPECT_TRUE(found->open);
}

TEST(ObjectStore, AnotherKeyDoesNotFindIt) {
  const auto store = OpenOrDie();
  ASSERT_TRUE(store->Put(Response("alice", "r1")).ok());
  EXPECT_EQ(store->Get(ObjectKind::kResponse, "bob", "r1").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Delete(ObjectKind::kResponse, "bob", "r1").code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Get(ObjectKind::kFile, "alice", "r1").status().code(), StatusCode::kNotFound);
  // An id of another key can be used again.
  ASSERT_TRUE(store->Put(Response("bob", "r1", 3)).ok());
  EXPECT_EQ(store->Get(ObjectKind::kResponse, "alice", "r1")->body.size(), 10u);
}

TEST(ObjectStore, ListsTheNewestFirstPageByPage) {
  const auto store = OpenOrDie();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(store->Put(File("o", id, 1)).ok());
  ASSERT_TRUE(store->Put(File("other", "d", 1)).ok());
  const auto first = store->List(ObjectKind::kFile, "o", "", 2);
  ASSERT_EQ(first->size(), 2u);
  EXPECT_EQ((*first)[0].id, "c");
  const auto second = store->List(ObjectKind::kFile, "o", (*first)[1].id, 2);
  ASSERT_EQ(second->size(), 1u);
  EXPECT_EQ((*second)[0].id, "a");
}

TEST(ObjectStore, SurvivesTheProcess) {
  const TempFolder folder;
  const ObjectStoreOptions options{.folder = folder.path()};
  {
    const auto store = OpenOrDie(options);
    StoredObject open = Response("o", "open");
    open.open = true;
    ASSERT_TRUE(store->Put(open).ok());
    ASSERT_TRUE(store->Put(Response("o", "ended")).ok());
    ASSERT_TRUE(store->PutBatchLine("b", {.number = 2, .text = "two"}).ok());
    ASSERT_TRUE(store->PutBatchLine("b", {.number = 1, .failed = true, .text = "one"}).ok());
    EXPECT_EQ(ObjectStore::Open(options).status().code(), StatusCode::kFailedPrecondition);
  }
  const auto store = OpenOrDie(options);
  const auto open = store->ListOpen(ObjectKind::kResponse);
  ASSERT_EQ(open->size(), 1u);
  EXPECT_EQ((*open)[0].id, "open");
  EXPECT_TRUE(Has(*store, "o", "ended"));
  const auto lines = store->BatchLines("b");
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ((*lines)[0].text, "one");
  EXPECT_TRUE((*lines)[0].failed);
}

TEST(ObjectStore, AFileOfAnotherKindIsRefused) {
  const TempFolder folder;
  std::ofstream(folder.path() + "/objects.sqlite") << "this is not a database, but a text";
  const auto store = ObjectStore::Open({.folder = folder.path()});
  EXPECT_EQ(store.status().code(), StatusCode::kDataLoss) << store.status().ToString();
}

TEST(ObjectStore, TheOldestResponseOfTheLargestOwnerMakesRoom) {
  const auto store = OpenOrDie({.bytes_max = 1000});
  ASSERT_TRUE(store->Put(Response("small", "s", 90)).ok());
  for (int i = 0; i < 9; ++i)
    ASSERT_TRUE(store->Put(Response("large", std::to_string(i), 95)).ok());
  ASSERT_TRUE(store->Put(Response("small", "t", 90)).ok());
  EXPECT_TRUE(Has(*store, "small", "s"));
  EXPECT_FALSE(Has(*store, "large", "0"));
  EXPECT_TRUE(Has(*store, "large", "1"));
}

TEST(ObjectStore, OpenObjectsAreNotDropped) {
  const auto store = OpenOrDie({.bytes_max = 1000});
  StoredObject open = Response("o", "open", 600);
  open.open = true;
  ASSERT_TRUE(store->Put(open).ok());
  const Status full = store->Put(Response("o", "next", 600));
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Has(*store, "o", "open"));
  ASSERT_TRUE(store->Put(Response("o", "next", 300)).ok());
}

TEST(ObjectStore, FilesAreRefusedWhenTheyHoldHalfOfIt) {
  const auto store = OpenOrDie({.bytes_max = 1000});
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(store->Put(Response("o", std::to_string(i), 100)).ok());
  ASSERT_TRUE(store->Put(File("o", "f", 400)).ok());
  const Status full = store->Put(File("o", "g", 200));
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("--store-bytes"), std::string::npos);
  EXPECT_FALSE(store->PutBatchLine("b", {.number = 1, .text = std::string(200, 'x')}).ok());
  ASSERT_TRUE(store->Delete(ObjectKind::kFile, "o", "f").ok());
  ASSERT_TRUE(store->Put(File("o", "g", 200)).ok());
}

TEST(ObjectStore, OldObjectsAreDroppedWithTheirLines) {
  const auto store = OpenOrDie({.age_max = Duration::Seconds(100)});
  StoredObject batch{.kind = ObjectKind::kBatch, .owner = "o", .id = "b", .created_s = 1000};
  ASSERT_TRUE(store->Put(batch).ok());
  ASSERT_TRUE(store->PutBatchLine("b", {.number = 1, .text = "x"}).ok());
  StoredObject open = Response("o", "open");
  open.open = true;
  ASSERT_TRUE(store->Put(open).ok());
  ASSERT_TRUE(store->DropOld(1100).ok());
  EXPECT_TRUE(Has(*store, "o", "b", ObjectKind::kBatch));
  ASSERT_TRUE(store->DropOld(1101).ok());
  EXPECT_FALSE(Has(*store, "o", "b", ObjectKind::kBatch));
  EXPECT_TRUE(store->BatchLines("b")->empty());
  EXPECT_TRUE(Has(*store, "o", "open"));
}

}  // namespace
}  // namespace millrace::serve
