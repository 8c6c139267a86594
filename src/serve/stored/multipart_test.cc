#include "serve/stored/multipart.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::serve {
namespace {

constexpr char kType[] = "multipart/form-data; boundary=XyZ";

std::vector<FormField> FieldsOf(std::string_view type, std::string_view body) {
  const auto parsed = ParseMultipart(type, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<std::vector<FormField>>(parsed);
}

TEST(Multipart, FieldsAndFiles) {
  const std::string body =
      "--XyZ\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--XyZ\r\ncontent-type: text/plain\r\n"
      "content-disposition: form-data; filename=\"a \\\"b\\\";c.jsonl\"; name=file\r\n\r\n"
      "one\r\ntwo\n\r\n--Xy\r\n\r\n--XyZ--\r\n";
  const auto fields = FieldsOf(kType, body);
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].name, "purpose");
  EXPECT_EQ(fields[0].content, "batch");
  EXPECT_EQ(fields[1].name, "file");
  EXPECT_EQ(fields[1].filename, "a \"b\";c.jsonl");
  EXPECT_EQ(fields[1].content, "one\r\ntwo\n\r\n--Xy\r\n");
}

TEST(Multipart, QuotedBoundaryPreambleAndEmptyPart) {
  const auto fields = FieldsOf("Multipart/Form-Data; charset=utf-8; Boundary=\"X: y\"",
                               "ignored\r\n--X: y  \r\nContent-Disposition: form-data; name=\"a\""
                               "\r\n\r\n\r\n--X: y--");
  ASSERT_EQ(fields.size(), 1u);
  EXPECT_EQ(fields[0].content, "");
}

TEST(Multipart, TypeIsRecognized) {
  EXPECT_TRUE(IsMultipart("multipart/form-data; boundary=x"));
  EXPECT_TRUE(IsMultipart("MULTIPART/FORM-DATA"));
  EXPECT_FALSE(IsMultipart("application/json; multipart/form-data"));
}

TEST(Multipart, EveryCutIsAnErrorAndNoneCrashes) {
  const std::string body =
      "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--XyZ--";
  for (size_t size = 0; size + 2 < body.size(); ++size) {
    const auto parsed = ParseMultipart(kType, body.substr(0, size));
    EXPECT_TRUE(std::holds_alternative<ApiError>(parsed)) << size;
  }
  FieldsOf(kType, body);
}

TEST(Multipart, WhatIsWrongIsSaid) {
  const auto error = [](std::string_view type, std::string_view body) {
    const auto parsed = ParseMultipart(type, body);
    const auto* found = std::get_if<ApiError>(&parsed);
    return found != nullptr ? found->message : "no error";
  };
  EXPECT_NE(error("multipart/form-data", "x").find("no boundary"), std::string::npos);
  EXPECT_NE(error(kType, "--other--").find("does not have the boundary"), std::string::npos);
  EXPECT_NE(error(kType, "--XyZ\r\n\r\nx\r\n--XyZ--").find("Content-Disposition"),
            std::string::npos);
  EXPECT_NE(
      error(kType, "--XyZ\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XyZ--").find("no name"),
      std::string::npos);
  std::string many;
  for (size_t i = 0; i <= kFormFieldsMax; ++i) {
    many += "--XyZ\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n";
  }
  EXPECT_NE(error(kType, many + "--XyZ--").find("more than 16"), std::string::npos);
}

}  // namespace
}  // namespace millrace::serve
