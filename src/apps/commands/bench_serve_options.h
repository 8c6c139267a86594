// The options of `millrace bench serve`, described once.
#pragma once

#include "apps/cli/command.h"
#include "apps/commands/bench_serve_flags.h"

namespace millrace::apps {

// The options write to `flags`, which must outlive the command.
void AddBenchServeOptions(Command& command, BenchServeFlags* flags);

}  // namespace millrace::apps
