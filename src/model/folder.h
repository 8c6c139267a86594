// Names of files inside a model folder. Names come from untrusted files (the shard index), so only
// plain names are allowed. A symbolic link may only lead into the folder itself or into the `blobs`
// folder beside `snapshots`, as in the Hugging Face cache. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::model {

inline constexpr size_t kFileNameBytesMax = 255;

// Not empty, not too long, and without folders.
bool IsPlainName(std::string_view name);

// The path of file `name` in `folder`, without opening it. kNotFound when it does not exist,
// kInvalidArgument when the name or its link target is not allowed.
Result<std::string> ResolveInFolder(const std::string& folder, std::string_view name);

// Reads file `name` in `folder`, at most `max_bytes`.
Result<std::string> ReadInFolder(const std::string& folder, std::string_view name,
                                 size_t max_bytes);

}  // namespace millrace::model
