#include "serve/generation/vectors.h"

#include <openssl/evp.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

namespace millrace::serve {

static_assert(std::endian::native == std::endian::little);

std::vector<float> ShapeVector(std::vector<float> vector, std::optional<int> dimensions,
                               bool normalize) {
  if (dimensions && std::cmp_less(*dimensions, vector.size())) {
    vector.resize(static_cast<size_t>(*dimensions));
  }
  if (!normalize) return vector;
  double squares = 0;
  for (const float number : vector) squares += double{number} * double{number};
  if (squares == 0) return vector;
  const double length = std::sqrt(squares);
  for (float& number : vector) number = static_cast<float>(double{number} / length);
  return vector;
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

std::string Base64Of(std::span<const float> vector) {
  const auto bytes = std::as_bytes(vector);
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL ends it with a zero
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

}  // namespace millrace::serve
