// Which processes share memory: those of one kernel that see the same process ids. Any thread.
#pragma once

#include <string>

namespace millrace::net {

// Identifies the kernel and the namespace of the process ids.
std::string ThisHostId();

}  // namespace millrace::net
