// The options of the store for responses, files and batches (serve/stored/object_store.h), for
// `serve` and `up`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "base/status.h"
#include "serve/stored/object_store.h"

namespace millrace::apps {

struct StoreFlags {
  std::string folder;  // empty: in memory
  std::optional<int64_t> bytes;
};

void AddStoreOptions(Command& command, StoreFlags* flags);
// kFailedPrecondition: another server has the folder.
Result<std::shared_ptr<serve::ObjectStore>> OpenStore(const StoreFlags& flags);

}  // namespace millrace::apps
