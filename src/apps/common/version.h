// The version of this program. Any thread.
#pragma once

namespace millrace::apps {

// "0.1.0".
const char* Version();

}  // namespace millrace::apps
