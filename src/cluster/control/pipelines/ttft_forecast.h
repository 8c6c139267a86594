// When a request would get its first token if it came now: a forecast from the rate at which
// prompts have been computed. Pure functions; any thread, as long as nothing changes their
// arguments.
#pragma once

#include <optional>

#include "base/clock.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"

namespace millrace::cluster {

// By the prompts ahead of it and its own. `apart`: the plan has pipelines that compute prompts
// only. nullopt: no pipeline for prompts is open, or none has measured its rate.
std::optional<Duration> ForecastTtft(int prompt_tokens, const Pipelines& pipelines,
                                     const Requests& requests, bool apart);

}  // namespace millrace::cluster
