#include "base/version.h"

namespace millrace::apps {

const char* Version() { return MILLRACE_VERSION; }

}  // namespace millrace::apps
