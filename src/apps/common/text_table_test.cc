#include "apps/common/text_table.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

TEST(TextTable, AlignsColumnsAndEndsNoLineWithBlanks) {
  const std::vector<std::vector<std::string>> rows = {{"NAME", "BYTES"}, {"a", "12", "x"}, {"b"}};
  EXPECT_EQ(TextTable(rows, "lr"), "NAME  BYTES\na        12  x\nb\n");
  EXPECT_EQ(TextTable(rows), "NAME  BYTES\na     12     x\nb\n");
}

}  // namespace
}  // namespace millrace::apps
