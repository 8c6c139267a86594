#include "serve/stored/stored_json.h"

#include <fmt/format.h>

namespace millrace::serve {

Result<Json> BodyOf(const StoredObject& object) {
  Result<Json> body = ParseJson(object.body, kStoredDepthMax);
  if (!body.ok()) return Damaged(object.kind, object.id, body.status().message());
  if (!IsText(*body, "id") || (*body)["id"] != Json(object.id)) {
    return Damaged(object.kind, object.id, "its body is of another object");
  }
  return body;
}

Result<Json> BatchBodyOf(const StoredObject& object) {
  MR_ASSIGN_OR_RETURN(Json body, BodyOf(object));
  for (const char* name : {"endpoint", "input_file_id", "status"}) {
    if (!IsText(body, name)) {
      return Damaged(object.kind, object.id, fmt::format("{} is no text", name));
    }
  }
  for (const char* name : {"created_at", "expires_at"}) {
    if (!body.value(name, Json()).is_number_integer()) {
      return Damaged(object.kind, object.id, fmt::format("{} is no time", name));
    }
  }
  return body;
}

ApiError StoredError(const Status& status, const char* not_found) {
  if (status.code() == StatusCode::kNotFound) {
    return {.status = 404, .message = status.message(), .code = not_found};
  }
  if (status.code() == StatusCode::kDataLoss) {
    return {.status = 500,
            .message = status.message(),
            .type = "server_error",
            .code = "object_damaged"};
  }
  return FromStatus(status);
}

}  // namespace millrace::serve
