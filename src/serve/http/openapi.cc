#include "serve/http/openapi.h"

namespace millrace::serve {
namespace {

constexpr char kDocument[] =
#include "serve/http/openapi_text.inc"
    ;

}  // namespace

Json OpenApiDocument(const std::string& version, const std::string& root_path) {
  Json document = Json::parse(kDocument);
  document["info"]["version"] = version;
  if (!root_path.empty()) document["servers"] = {{{"url", root_path}}};
  return document;
}

}  // namespace millrace::serve
