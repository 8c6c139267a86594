#include "serve/openapi.h"

namespace millrace::serve {
namespace {

constexpr char kDocument[] =
#include "serve/openapi_text.inc"
    ;

}  // namespace

Json OpenApiDocument(const std::string& version) {
  Json document = Json::parse(kDocument);
  document["info"]["version"] = version;
  return document;
}

}  // namespace millrace::serve
