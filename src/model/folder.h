// Names of files inside a model folder. Names come from files that are not trusted (the shard
// index), so they are plain names only, and a symbolic link may not lead out of the folder: either
// into the folder itself or into the `blobs` folder beside `snapshots`, as the Hugging Face cache
// has it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::model {

inline constexpr size_t kFileNameBytesMax = 255;

// Not empty, not too long, and of this folder.
bool IsPlainName(std::string_view name);

// The path of file `name` in `folder`, without opening it. kNotFound when nothing is there,
// kInvalidArgument when the name or what it links to is not allowed.
Result<std::string> ResolveInFolder(const std::string& folder, std::string_view name);

// Reads file `name` in `folder`, at most `max_bytes`.
Result<std::string> ReadInFolder(const std::string& folder, std::string_view name,
                                 size_t max_bytes);

}  // namespace millrace::model
