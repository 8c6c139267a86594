// Fields of a JSON object from a server. A field that is missing or of another type is empty, not
// an error; text is made printable. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace millrace::apps {

inline constexpr size_t kNameBytesMax = 64;

std::string TextField(const Json& object, const char* key, size_t max_bytes = kNameBytesMax);
int64_t IntegerField(const Json& object, const char* key);
double RealField(const Json& object, const char* key);
bool FlagField(const Json& object, const char* key);
bool HasNumber(const Json& object, const char* key);
// The objects of an array; other elements are skipped.
std::vector<Json> ObjectsField(const Json& object, const char* key);

}  // namespace millrace::apps
