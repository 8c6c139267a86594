#include "base/version.h"

namespace millrace {

const char* Version() { return MILLRACE_VERSION; }

}  // namespace millrace
