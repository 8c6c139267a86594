#include "apps/common/private_folder.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file.h"

namespace millrace::apps {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr unsigned kSecretFileMode = 0600;

}  // namespace

Result<std::unique_ptr<PrivateFolder>> PrivateFolder::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return Unavailable(
        fmt::format("no folder for temporary files: {}; set TMPDIR to one", error.message()));
  }
  std::string path = parent / "millrace-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Unavailable(fmt::format("cannot make a folder in {}: {}; set TMPDIR to another place",
                                   parent.string(), std::strerror(errno)));
  }
  return std::unique_ptr<PrivateFolder>(new PrivateFolder(path));
}

PrivateFolder::~PrivateFolder() {
  if (kept_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::string> PrivateFolder::WriteSecret(const std::string& name,
                                               const std::string& content) const {
  const std::string path = path_ + "/" + name;
  MR_RETURN_IF_ERROR(WriteFileWithMode(path, content, kSecretFileMode, ExistingFile::kKeep));
  return path;
}

Result<std::string> NewClusterToken() {
  std::array<uint8_t, kTokenBytes> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Unavailable(fmt::format("cannot get random bytes: {}", std::strerror(errno)));
  }
  std::string text;
  for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace millrace::apps
