// The values of arguments that a family of models writes without quotes, as the schema of the tool
// wants them. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/json_text.h"

namespace millrace::text {

// The schema of the tool's arguments; null: the request has no such tool, or it takes any.
const OrderedJson* ArgumentsSchemaOf(const OrderedJson& tools, const std::string& function);

// The JSON value of a parameter. What does not fit its type is a string. Without a type, what is
// JSON stays so and the rest is a string. `arguments`: of ArgumentsSchemaOf; may be null.
std::string TypedValue(const OrderedJson* arguments, const std::string& parameter,
                       std::string_view text);

}  // namespace millrace::text
