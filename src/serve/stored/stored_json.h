// The JSON of stored objects, checked: what a row says is as little trusted as what a client sends.
// Pure functions; any thread.
#pragma once

#include "base/json.h"
#include "serve/http/api_error.h"
#include "serve/stored/stored_object.h"

namespace millrace::serve {

// Requests may be kJsonDepthMax deep, and lie a few levels down in a stored object.
inline constexpr int kStoredDepthMax = 2 * kJsonDepthMax;

// The body: a JSON object with the row's id. kDataLoss as Damaged.
Result<Json> BodyOf(const StoredObject& object);
// The body of a batch, with what the server needs of it. kDataLoss as Damaged.
Result<Json> BatchBodyOf(const StoredObject& object);

template <typename Value>
bool IsText(const Value& object, const char* name) {
  const auto at = object.is_object() ? object.find(name) : object.end();
  return at != object.end() && at->is_string();
}

template <typename Value>
bool IsListOfObjects(const Value& object, const char* name) {
  const auto at = object.is_object() ? object.find(name) : object.end();
  if (at == object.end() || !at->is_array()) return false;
  for (const Value& item : *at) {
    if (!item.is_object()) return false;
  }
  return true;
}

// The HTTP form of an error of the store: 404 if there is no such object, with `not_found` as its
// code, and 500 with the code object_damaged.
ApiError StoredError(const Status& status, const char* not_found = "not_found");

}  // namespace millrace::serve
