#include "serve/answer/answer_writer.h"

#include "serve/request/ignored_fields.h"

namespace millrace::serve {

net::HttpResponse AnswerWriter::Refusal(const ApiError& error) const {
  net::HttpResponse response = ErrorResponse(error);
  Refuse(error, response);
  return response;
}

void AnswerWriter::Refuse(const ApiError& error, net::HttpResponse& response) const {
  response.body = DumpJson(Error(names_.Of(error)));
  AddIgnored(response, "");
}

void AnswerWriter::AddIgnored(net::HttpResponse& response, const std::string& of_chat) const {
  const std::string all =
      JoinIgnored(of_chat, ignored_, [this](std::string_view name) { return names_.Of(name); });
  if (!all.empty()) response.headers.emplace_back(kIgnoredHeader, all);
}

}  // namespace millrace::serve
