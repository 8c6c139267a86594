// A worker's session with a controller, named by whoever carries it; never reused. A value.
#pragma once

#include "base/strong_id.h"

namespace millrace::cluster {

using ConnectionId = StrongId<struct ConnectionIdTag>;

}  // namespace millrace::cluster
