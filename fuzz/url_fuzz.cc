// A parsed URL prints as a URL that parses to the same result.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "net/http/http.h"
#include "net/url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto url = millrace::net::ParseUrl(text);
  if (url.ok()) {
    const auto again = millrace::net::ParseUrl(url->ToString());
    if (again.ok()) {
      MR_CHECK(again->ToString() == url->ToString());
      MR_CHECK(again->host == url->host && again->port == url->port);
    } else {
      MR_CHECK(url->ToString().size() > millrace::net::kUrlBytesMax) << url->ToString();
    }
  }
  if (const auto target = millrace::net::ParseTarget(text); target.ok()) {
    MR_CHECK(!target->path.empty());
  }
  return 0;
}
