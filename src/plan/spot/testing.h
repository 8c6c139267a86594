// Helpers of tests that need profiles: the published ones, and random ones. Pure; any thread.
#pragma once

#include <string>

#include "base/rng.h"
#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// The profile of "6.7B", "h6144" (GPT-20B) or "h7168" (LLaMA-30B), from testdata/.
std::string ProfileText(const std::string& model);
Profile PublishedProfile(const std::string& model);

// Random sizes and times; a tenth of the cells are missing.
Profile RandomProfile(Rng& rng);

}  // namespace millrace::plan::spot
