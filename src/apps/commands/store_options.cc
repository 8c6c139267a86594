#include "apps/commands/store_options.h"

#include <utility>

#include "apps/cli/option.h"

namespace millrace::apps {
namespace {

constexpr int64_t kFolderBytes = int64_t{1} << 30;

}  // namespace

void AddStoreOptions(Command& command, StoreFlags* flags) {
  constexpr char kGroup[] = "Stored objects";
  Option folder = TextOption("store", "FOLDER", &flags->folder);
  folder.kind = ValueKind::kFile;
  command.Add(
      kGroup, std::move(folder),
      "Keep responses, files and batches here, so that they survive a restart; each belongs "
      "to the API key that made it [default: in memory]");
  command.Add(kGroup, BytesOption("store-bytes", &flags->bytes),
              "What they may take in all: when it is full, the oldest responses are dropped and "
              "files are refused [default: 1GiB in a folder, 64MiB in memory]");
}

Result<std::shared_ptr<serve::ObjectStore>> OpenStore(const StoreFlags& flags) {
  serve::ObjectStoreOptions options{.folder = flags.folder};
  if (!flags.folder.empty()) options.bytes_max = kFolderBytes;
  if (flags.bytes) options.bytes_max = static_cast<size_t>(*flags.bytes);
  auto store = serve::ObjectStore::Open(options);
  if (!store.ok()) return store.status().WithContext("--store");
  return std::shared_ptr<serve::ObjectStore>(std::move(*store));
}

}  // namespace millrace::apps
