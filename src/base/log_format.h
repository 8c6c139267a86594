// The form of this process's log lines, for what else writes to stderr. Any thread.
#pragma once

#include "base/log.h"

namespace millrace {

LogFormat CurrentLogFormat();  // as InitLog set it

}  // namespace millrace
