// ControllerOptionsFor: what the command line and the model say of the controller and its
// scheduler. The one place where EngineFlags become scheduler options, for a model in this process
// (`serve`, `chat`, `generate`, `bench`) as for one on workers (`serve --cluster`, `up`). One
// thread, at start.
#pragma once

#include <cstdint>

#include "apps/engine_flags.h"
#include "apps/local_model.h"
#include "base/status.h"
#include "cluster/controller_host.h"

namespace millrace::apps {

// Reads of `model` what is known before the engine: path, tokenizer, spec, generation and kv. Opens
// the file of --step-log. The caller adds what the flags do not say: the term, the layout, limits.
Result<cluster::ControllerHostOptions> ControllerOptionsFor(const EngineFlags& flags,
                                                            const LocalModel& model);

// 64 random bits of the operating system.
uint64_t Random64();

}  // namespace millrace::apps
