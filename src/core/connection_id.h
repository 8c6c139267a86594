// ConnectionId: names one session of a worker with a controller. The transport that carries the
// session assigns the id and never reuses it. A value; any thread.
#pragma once

#include "base/strong_id.h"

namespace millrace {

using ConnectionId = StrongId<struct ConnectionIdTag>;

}  // namespace millrace
