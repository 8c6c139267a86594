// The time account of a request as its client saw it, as JSON: what the controller has recorded,
// between what the front end did before and after. Pure; any thread.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "core/time_account.h"

namespace millrace::serve {

// They add up to the time from `arrived` to `end`.
std::vector<TimeEntry> WholeAccount(const TimeAccount& account, Time arrived, Time end);
Json AccountJson(const TimeAccount& account, Time arrived, Time end);

}  // namespace millrace::serve
