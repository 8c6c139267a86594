// Expectations of error messages.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace millrace::model {

inline void ExpectPart(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace millrace::model
