// Files that hold prompts, answers, tokens or secrets: nobody but their owner may read them. Any
// thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

// Creates the folder with mode 0700, and its parents as usual. One that exists keeps its mode: it
// may be shared. kUnavailable: it cannot be created.
Status MakePrivateFolder(const std::string& path);

enum class MissingFile { kCreate, kLeave };
// Gives the file mode 0600 before it is used, and creates it if it may. If that is impossible,
// because it belongs to another user for example, the log has a warning with the cause and the
// cure; whether the file can be used at all is for its reader or writer to find out. Pipes and
// devices are left alone.
void MakePrivateFile(const std::string& path, MissingFile missing = MissingFile::kCreate);

// Warns in the log, with the cure, if every user may read the file, which an operator wrote. Its
// group may: Kubernetes mounts secrets so. `what`: what names it, such as "--api-key-file".
void WarnIfOthersMayRead(const std::string& what, const std::string& path);

}  // namespace millrace
