#include "serve/http/gzip_body.h"

#include <fmt/format.h>
#include <strings.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

namespace millrace::serve {
namespace {

constexpr int kGzipOnly = 16;  // added to the window bits: no zlib header
constexpr size_t kPieceBytes = 64 << 10;

struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

Status NotGzip(std::string_view why) {
  return InvalidArgument(fmt::format(
      "The body is not what its Content-Encoding says: {}. Send it again, or without gzip.", why));
}

}  // namespace

bool IsGzip(std::string_view coding) {
  const auto is = [coding](std::string_view name) {
    return coding.size() == name.size() &&
           strncasecmp(coding.data(), name.data(), name.size()) == 0;
  };
  return is("gzip") || is("x-gzip");
}

Result<std::string> InflateGzip(std::string_view body, size_t bytes_max) {
  if (body.size() > std::numeric_limits<uInt>::max()) {
    return Status(StatusCode::kTooLarge, "The body is larger than 4 GiB.");
  }
  z_stream stream = {};
  if (inflateInit2(&stream, MAX_WBITS + kGzipOnly) != Z_OK) return Internal("zlib has no memory");
  const std::unique_ptr<z_stream, InflateEnd> owner(&stream);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));  // zlib only reads
  stream.avail_in = static_cast<uInt>(body.size());
  std::string out;
  bool ended = false;  // of the current member
  while (stream.avail_in > 0 || !ended) {
    if (ended && inflateReset(&stream) != Z_OK) return Internal("zlib cannot start over");
    const size_t had = out.size();
    // One byte beyond the limit tells that there is more.
    out.resize(had + std::min(kPieceBytes, bytes_max + 1 - had));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + had);
    stream.avail_out = static_cast<uInt>(out.size() - had);
    const int code = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
    if (out.size() > bytes_max) {
      return Status(StatusCode::kTooLarge,
                    fmt::format("The body is larger than the limit of {} bytes when it is "
                                "inflated; send less.",
                                bytes_max));
    }
    ended = code == Z_STREAM_END;
    if (code == Z_BUF_ERROR) return NotGzip("it ends too early");
    if (code != Z_OK && !ended) return NotGzip(stream.msg == nullptr ? "damaged" : stream.msg);
  }
  return out;
}

}  // namespace millrace::serve
