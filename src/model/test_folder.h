// For tests: a temporary folder, and safetensors files written byte by byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::model {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "millrace-model-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path(std::string_view name = "") const {
    return name.empty() ? path_ : path_ + "/" + std::string(name);
  }
  void Write(std::string_view name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary)
        .write(content.data(), static_cast<long>(content.size()));
  }

 private:
  std::string path_;
};

// Length, header and `data_bytes` bytes of data.
inline std::string SafetensorsFile(std::string_view header, size_t data_bytes) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i * 37);
  return out;
}

inline std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace millrace::model
