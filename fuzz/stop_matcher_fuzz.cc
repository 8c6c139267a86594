// Stop strings and a text in pieces, cut by the input; the reference tries every end.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/stop_matcher.h"

namespace {

// Splits at `separator`.
std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 512) return 0;
  // "stop,stop;piece,piece": the first ';' ends the stop strings.
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t middle = input.find(';');
  if (middle == std::string::npos) return 0;
  const std::vector<std::string> stops = Split(input.substr(0, middle), ',');
  millrace::text::StopMatcher matcher(stops);
  std::string all;
  std::string shown;
  std::optional<size_t> stop;
  for (const std::string& piece : Split(input.substr(middle + 1), ',')) {
    all += piece;
    auto result = matcher.Push(piece);
    shown += result.text;
    if (result.stop.has_value()) stop = result.stop;
  }
  shown += matcher.Flush();

  for (size_t end = 1; end <= all.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops) {
      if (s.size() > longest && std::string_view(all).substr(0, end).ends_with(s)) {
        longest = s.size();
      }
    }
    if (longest == 0) continue;
    MR_CHECK(stop.has_value() && stops[*stop].size() == longest);
    MR_CHECK(shown == all.substr(0, end - longest));
    return 0;
  }
  MR_CHECK(!stop.has_value() && shown == all);
  return 0;
}
