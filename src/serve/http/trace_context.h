// TraceContext: which trace a request belongs to, and its own span in it (W3C Trace Context).
// A value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::serve {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16; empty: the trace begins here
  std::string span_id;    // 16; of this request
  bool sampled = true;    // as the caller wants it; if not, its span is not exported

  // The header with which answers name this request's span.
  std::string Header() const;
};

// The context of a request with this `traceparent`. One that is not valid counts as absent, as the
// standard asks. `random`: for ids.
TraceContext TraceOf(std::optional<std::string_view> traceparent, std::array<uint64_t, 3> random);

}  // namespace millrace::serve
