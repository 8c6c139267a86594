// UTF-8, as far as responses need it. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::serve {

// Well-formed in the sense of Unicode 15, table 3-7: no overlong forms, surrogates or halves.
bool IsUtf8(std::string_view bytes);

// Code points in `bytes`: bytes that begin one, so that pieces of a text add up to the whole.
int64_t CountCharacters(std::string_view bytes);

}  // namespace millrace::serve
