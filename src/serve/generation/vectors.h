// What the front end makes of vectors. Pure functions; any thread. All sums are in double and in
// the order of the numbers, so that equal vectors give equal bits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace::serve {

// The first `dimensions` numbers (Matryoshka embeddings), then of length 1 if `normalize`. A vector
// of zeros stays one.
std::vector<float> ShapeVector(std::vector<float> vector, std::optional<int> dimensions,
                               bool normalize);

// The cosine of the angle between vectors of the same size and of length 1, or zero.
double Cosine(std::span<const float> a, std::span<const float> b);

// The bytes of the numbers, the lowest first, in base64.
std::string Base64Of(std::span<const float> vector);

}  // namespace millrace::serve
