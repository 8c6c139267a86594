// PrivateFolder: a temporary folder that only this user can enter, for secrets, logs and sockets of
// child processes. The destructor removes it with its contents.
//
// Owned by a command; one thread.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace millrace::apps {

class PrivateFolder {
 public:
  // In the system's folder for temporary files. kUnavailable when it cannot be made.
  static Result<std::unique_ptr<PrivateFolder>> Make();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file that only this user can read, and returns its path.
  Result<std::string> WriteSecret(const std::string& name, const std::string& content) const;
  // The destructor leaves it.
  void Keep() { kept_ = true; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
  bool kept_ = false;
};

// A new secret that lets workers join: 32 random bytes as hexadecimal digits.
Result<std::string> NewClusterToken();

}  // namespace millrace::apps
