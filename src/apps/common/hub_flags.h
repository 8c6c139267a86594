// The options of every command that may get its model from the Hugging Face hub.
#pragma once

#include "apps/cli/command.h"
#include "ops/hub/fetch_model.h"

namespace millrace::apps {

inline constexpr char kModelHelp[] =
    "A Hugging Face model folder, or ORG/NAME of a model on the Hugging Face hub, of which what "
    "the "
    "cache lacks is downloaded";

// --revision and --offline. `flags` must outlive the command.
void AddHubOptions(Command& command, const char* group, ops::HubFlags* flags);

}  // namespace millrace::apps
