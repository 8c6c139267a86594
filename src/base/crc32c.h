// CRC-32C (Castagnoli), the checksum of what Millrace keeps in files. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

// `before`: the checksum of the bytes in front of these, to go on from it.
uint32_t Crc32c(std::string_view bytes, uint32_t before = 0);

}  // namespace millrace
