// The answer of /health. A supervisor restarts a process whose /health is not 200, so it is 503
// only for what a restart of this process can mend. Pure; any thread.
#pragma once

#include <string>

#include "cluster/generator.h"
#include "net/http/http.h"

namespace millrace::serve {

// `stalled_id`: the id of stats.stalled in the API; "" if it is not known.
net::HttpResponse HealthAnswer(const cluster::GeneratorStats& stats, const std::string& stalled_id);

}  // namespace millrace::serve
