// For tests: compressed texts.
#pragma once

#include <zlib.h>

#include <string>

#include "base/check.h"

namespace millrace::serve {

inline std::string Compressed(const std::string& text, int window_bits) {
  z_stream stream = {};
  MR_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  MR_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string Gzip(const std::string& text) { return Compressed(text, MAX_WBITS + 16); }
inline std::string Deflate(const std::string& text) { return Compressed(text, MAX_WBITS); }

}  // namespace millrace::serve
