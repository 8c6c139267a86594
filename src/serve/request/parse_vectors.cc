#include <fmt/format.h>

#include <limits>
#include <utility>

#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace millrace::serve {
namespace {

void ReadPooling(FieldReader& reader, Pooling& pooling) {
  std::string name;
  reader.String("pooling", kNameBytesMax, name);
  if (name == "mean") pooling = Pooling::kMean;
  if (name.empty() || name == "last" || name == "mean") return;
  reader.Fail("pooling",
              fmt::format("pooling must be \"last\" or \"mean\", got {}", Describe(name)));
}

void ReadVectorOptions(FieldReader& reader, const ParseContext& context, VectorOptions& options) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  reader.String("model", kNameBytesMax, options.model);
  ReadPooling(reader, options.pooling);
  ReadTruncation(reader, context.max_model_len, options.truncation);
  reader.Bool("add_special_tokens", options.add_special_tokens);
  options.parse_special = context.parse_special_default;
  reader.Bool("parse_special", options.parse_special);
  reader.Int("priority", kMin, kMax, options.priority);
  reader.String("cache_salt", kNameBytesMax, options.cache_salt);
  reader.Ignore("user");
}

// The texts of a field that is one text or a list, as inputs.
void AddTexts(FieldReader& reader, const char* field, std::vector<VectorInput>& inputs) {
  std::vector<std::string> texts;
  reader.StringOrList(field, texts);
  if (reader.failed()) return;
  if (texts.empty()) {
    return reader.Fail(field, fmt::format("{} is required: a string or a list of strings", field));
  }
  if (texts.size() > kPromptsMax) {
    return reader.Fail(
        field, fmt::format("{} has {} texts, the limit is {}", field, texts.size(), kPromptsMax));
  }
  const bool list = reader.Find(field)->is_array();
  for (size_t i = 0; i < texts.size(); ++i) {
    inputs.push_back({std::move(texts[i]), list ? fmt::format("{}[{}]", field, i) : field});
  }
}

// Documents are texts, or objects with one.
void AddDocuments(FieldReader& reader, std::vector<VectorInput>& inputs) {
  const Json* given = reader.Find("documents");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return reader.Fail("documents", "documents is required: a list of at least one text");
  }
  if (given->size() > kPromptsMax) {
    return reader.Fail("documents", fmt::format("documents has {} texts, the limit is {}",
                                                given->size(), kPromptsMax));
  }
  for (const Json& document : *given) {
    const std::string where = fmt::format("documents[{}]", inputs.size() - 1);
    const auto text = document.is_object() ? document.find("text") : document.end();
    const Json& item = text == document.end() ? document : *text;
    if (!item.is_string()) {
      return reader.Fail("documents", fmt::format("{} must be a string or an object with the "
                                                  "string \"text\", got {}",
                                                  where, Describe(document)));
    }
    reader.IgnoreUnknown(where, document, {"text"});
    inputs.push_back({item.get<std::string>(), where});
  }
}

// Calls `read`, and names the fields without effect.
template <typename Request, typename Read>
Parsed<Request> ParseVectors(const Json& body, const ParseContext& context, Read read) {
  Request request;
  FieldReader reader(body);
  ReadVectorOptions(reader, context, request.options);
  read(reader, request);
  if (reader.error()) return *reader.error();
  request.options.ignored = IgnoredHeaderValue(reader);
  return request;
}

}  // namespace

Parsed<EmbeddingRequest> ParseEmbeddingRequest(const Json& body, const ParseContext& context) {
  const auto read = [&](FieldReader& reader, EmbeddingRequest& request) {
    std::vector<Prompt> prompts;
    reader.Unsupported("messages", "send the text as input");
    ReadPrompts(reader, "input", context.vocab_size, prompts);
    const Json* given = reader.Find("input");
    const bool list = given != nullptr && given->is_array() && !given->front().is_number();
    for (size_t i = 0; i < prompts.size(); ++i) {
      request.inputs.push_back(
          {std::move(prompts[i]), list ? fmt::format("input[{}]", i) : "input"});
    }
    std::string format = "float";
    reader.String("encoding_format", kNameBytesMax, format);
    request.base64 = format == "base64";
    if (format != "float" && format != "base64") {
      reader.Fail(
          "encoding_format",
          fmt::format("encoding_format must be \"float\" or \"base64\", got {}", Describe(format)));
    }
    reader.Int("dimensions", 1, context.embedding_size, request.dimensions);
    reader.Bool("normalize", request.normalize);
    for (const char* field : {"embed_dtype", "endianness"}) {
      reader.Unsupported(field, "numbers are float32, in base64 with the lowest byte first");
    }
  };
  return ParseVectors<EmbeddingRequest>(body, context, read);
}

Parsed<ScoreRequest> ParseScoreRequest(const Json& body, const ParseContext& context) {
  const auto read = [](FieldReader& reader, ScoreRequest& request) {
    AddTexts(reader, "text_1", request.inputs);
    request.first = request.inputs.size();
    AddTexts(reader, "text_2", request.inputs);
    const size_t second = request.inputs.size() - request.first;
    if (request.first == 1 || request.first == second || reader.failed()) return;
    reader.Fail("text_1", fmt::format("text_1 must be one text or as many as text_2, which are {}, "
                                      "got {}",
                                      second, request.first));
  };
  return ParseVectors<ScoreRequest>(body, context, read);
}

Parsed<RerankRequest> ParseRerankRequest(const Json& body, const ParseContext& context) {
  const auto read = [&](FieldReader& reader, RerankRequest& request) {
    std::string query;
    if (reader.Find("query") == nullptr) reader.Fail("query", "query is required");
    reader.String("query", std::numeric_limits<size_t>::max(), query);
    request.inputs.push_back({std::move(query), "query"});
    AddDocuments(reader, request.inputs);
    reader.Int("top_n", 0, std::numeric_limits<int32_t>::max(), request.top_n);
    if (request.top_n == 0) request.top_n.reset();  // vLLM's clients send it for all
    reader.Bool("return_documents", request.return_documents);
  };
  return ParseVectors<RerankRequest>(body, context, read);
}

}  // namespace millrace::serve
