// Where tests find the data of the source tree. Linked into every test; callable from any thread.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// The absolute path of a file or folder, given relative to the root of the tree. Only one source
// file is compiled with the root's path, so the compiler cache knows all others in every clone.
std::string SourcePath(std::string_view relative);

}  // namespace millrace
