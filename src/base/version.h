// The version of this program. Any thread.
#pragma once

namespace millrace {

// "0.2.0".
const char* Version();

}  // namespace millrace
