#include "model/folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/log.h"

namespace millrace::model {
namespace fs = std::filesystem;
namespace {

// Whether `path` lies below `folder`; both canonical.
bool IsBelow(const fs::path& path, const fs::path& folder) {
  auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

}  // namespace

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= kFileNameBytesMax && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

Result<std::string> ResolveInFolder(const std::string& folder, std::string_view name) {
  if (!IsPlainName(name)) {
    return InvalidArgument(fmt::format(
        "{}: \"{}\" is not a plain file name inside the model folder", folder, Printable(name)));
  }
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return NotFound(folder + ": no such model folder");
  if (!fs::is_directory(root, error)) return NotFound(folder + ": not a folder");
  const fs::path path = root / name;
  const fs::path target = fs::canonical(path, error);
  if (error) return NotFound(path.string() + ": no such file");
  if (IsBelow(target, root)) return target.string();
  const fs::path repository = root.parent_path().parent_path();
  if (root.parent_path().filename() == "snapshots" && IsBelow(target, repository / "blobs")) {
    return target.string();
  }
  return InvalidArgument(fmt::format("{}: links to {}, outside the model folder; copy the file",
                                     path.string(), target.string()));
}

Result<std::string> ReadInFolder(const std::string& folder, std::string_view name,
                                 size_t max_bytes) {
  MR_ASSIGN_OR_RETURN(std::string path, ResolveInFolder(folder, name));
  return ReadFile(path, max_bytes);
}

}  // namespace millrace::model
