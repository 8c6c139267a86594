// TextTable: rows of cells as aligned columns. A pure function.
#pragma once

#include <string>
#include <vector>

namespace millrace::apps {

// Columns as wide as their widest cell; the last one is not padded.
std::string TextTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace millrace::apps
