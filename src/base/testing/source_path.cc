#include "base/testing/source_path.h"

namespace millrace {

std::string SourcePath(std::string_view relative) {
  return std::string(MILLRACE_SOURCE_DIR "/").append(relative);
}

}  // namespace millrace
