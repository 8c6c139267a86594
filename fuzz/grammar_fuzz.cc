// A grammar in GBNF or Lark compiles, or gives a Status of one line. What GBNF becomes compiles
// too.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "base/check.h"
#include "core/output_grammar.h"
#include "text/grammars.h"
#include "text/token_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  // A longer one may nest rules more deeply than the stack is; the server tries those in a process
  // of their own.
  constexpr size_t kBytesMax = 600;
  static const auto* const grammars =
      new std::shared_ptr<text::Grammars>(text::Grammars::Of(text::ByteTable()));
  const std::string text(reinterpret_cast<const char*>(data), std::min(size, kBytesMax));
  const std::string grammar = GrammarOf(GrammarKind::kLark, text);
  const Status status = (*grammars)->Check(grammar);
  if (!status.ok()) {
    MR_CHECK(status.message().find('\n') == std::string::npos);
    return 0;
  }
  MR_CHECK((*grammars)->Check((*grammars)->WithoutGbnf(grammar)).ok());
  return 0;
}
