// ControllerOptionsFor: makes the options of the controller and its scheduler from the command line
// and the model. This is the only place where EngineFlags become scheduler options, for a model in
// this process (`serve`, `chat`, `generate`, `bench`) and for one on workers (`serve --cluster`,
// `up`). Called by one thread, at start.
#pragma once

#include <cstdint>

#include "apps/cluster/local_model.h"
#include "apps/common/engine_flags.h"
#include "base/status.h"
#include "cluster/runtime/controller_host.h"
#include "core/output_grammar.h"

namespace millrace::apps {

// Reads the fields of `model` that are set before the controller is made: path, tokenizer,
// chat_template, spec, generation and kv. Opens the file of --step-log. The caller adds what the
// flags do not contain: the term, the layout, limits.
Result<cluster::ControllerHostOptions> ControllerOptionsFor(const EngineFlags& flags,
                                                            const LocalModel& model);

// The table by which workers constrain output. Fields of `model` as above.
Result<TokenTable> TokenTableOf(const LocalModel& model);

// Returns 64 random bits from the operating system.
uint64_t Random64();

}  // namespace millrace::apps
