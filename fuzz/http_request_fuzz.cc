// The first byte selects how to cut the rest into pieces; the pieces and the whole must give the
// same result. A few more bytes follow, because the parser may wait for them to decide on the end
// of a chunk.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "net/http/http1.h"

namespace millrace::net {
namespace {

constexpr size_t kHeadBytesMax = 512;

// The requests of a connection and its failure status, as text.
std::string Play(std::string_view stream, size_t piece_bytes) {
  HttpLimits limits;
  limits.head_bytes_max = kHeadBytesMax;
  limits.target_bytes_max = 128;
  limits.headers_max = 8;
  limits.body_bytes_max = 256;
  std::string out, in;
  auto parser = std::make_unique<RequestParser>(limits);
  while (true) {
    const size_t used = parser->Feed(in);
    MR_CHECK(used <= in.size());
    in.erase(0, used);
    if (parser->stage() == HttpStage::kFailed) {
      return out + "failed " + std::to_string(parser->failure().status);
    }
    if (parser->stage() == HttpStage::kDone) {
      const HttpRequest request = parser->TakeRequest();
      MR_CHECK(request.body.size() <= limits.body_bytes_max);
      out += request.method + " " + request.path + "?" + request.query + " " + request.body + "\n";
      for (const auto& [name, value] : request.headers) out += name + ": " + value + "\n";
      if (auto query = ParseQuery(request.query); query.ok()) {
        out += std::to_string(query->size()) + "\n";
      }
      parser = std::make_unique<RequestParser>(limits);
      continue;
    }
    if (used > 0 && !in.empty()) continue;
    if (stream.empty()) return out;
    in += stream.substr(0, piece_bytes);
    stream.remove_prefix(std::min(piece_bytes, stream.size()));
  }
}

}  // namespace
}  // namespace millrace::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string stream =
      std::string(reinterpret_cast<const char*>(data + 1), size - 1) + "--------";
  const std::string whole = millrace::net::Play(stream, stream.size());
  const std::string pieces = millrace::net::Play(stream, 1 + data[0] % 32);
  MR_CHECK(whole == pieces) << whole << "\n--- in pieces:\n" << pieces;
  return 0;
}
