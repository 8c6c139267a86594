#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <string>

#include "text/golden_templates.h"

namespace millrace::text {
namespace {

TEST(ChatTemplate, RendersAsJinja2) {
  EXPECT_EQ(CompareGoldenTemplates(MILLRACE_SOURCE_DIR "/src/text/testdata/chat_templates"), 160);
}

}  // namespace
}  // namespace millrace::text
