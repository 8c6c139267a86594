// What the tests of this folder share: the published profiles, and profiles drawn at random.
#pragma once

#include <string>

#include "base/rng.h"
#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// Of "6.7B", "h6144" (GPT-20B) or "h7168" (LLaMA-30B), from testdata/.
std::string ProfileText(const std::string& model);
Profile PublishedProfile(const std::string& model);

// Random sizes and times; a tenth of the cells is missing.
Profile RandomProfile(Rng& rng);

}  // namespace millrace::plan::spot
