// TextTable: rows of cells as aligned columns. A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::apps {

// Columns as wide as their widest cell, two blanks apart; no line ends with blanks. `sides` has a
// letter for each column: 'l' left, 'r' right. Columns without one are left.
std::string TextTable(const std::vector<std::vector<std::string>>& rows,
                      std::string_view sides = {});

}  // namespace millrace::apps
