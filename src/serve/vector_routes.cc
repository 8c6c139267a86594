#include "serve/vector_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <utility>

#include "serve/generation/embedding.h"
#include "serve/generation/vectors.h"
#include "serve/http/decorated_reply.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

using Vectors = std::vector<std::vector<float>>;

ApiError TooLongForVector(int max_model_len, const std::string& where, size_t tokens) {
  return {.message = fmt::format("This model's maximum context length is {} tokens. However, {} "
                                 "has {} tokens. Please reduce its length, or set "
                                 "truncate_prompt_tokens.",
                                 max_model_len, where, tokens),
          .code = "context_length_exceeded"};
}

Parsed<std::vector<TokenId>> EncodeInput(const ServedModel& model, const VectorOptions& options,
                                         const VectorInput& input, const net::HttpReply* client) {
  std::vector<TokenId> tokens;
  if (const auto* text = std::get_if<std::string>(&input.prompt)) {
    Parsed<std::vector<TokenId>> encoded = EncodeText(
        model, *text,
        {.add_special_tokens = options.add_special_tokens, .parse_special = options.parse_special},
        input.where, {.truncation = options.truncation, .client = client});
    if (auto* error = std::get_if<ApiError>(&encoded)) return std::move(*error);
    tokens = std::move(std::get<std::vector<TokenId>>(encoded));
  } else {
    tokens = std::get<std::vector<TokenId>>(input.prompt);
  }
  Truncate(options.truncation, model.max_model_len, tokens);
  if (std::cmp_less_equal(tokens.size(), model.max_model_len)) return tokens;
  return TooLongForVector(model.max_model_len, input.where, tokens.size());
}

// The error names the field, without the index.
Parsed<std::vector<std::vector<TokenId>>> EncodeInputs(const ServedModel& model,
                                                       const VectorOptions& options,
                                                       const std::vector<VectorInput>& inputs,
                                                       const net::HttpReply* client) {
  std::vector<std::vector<TokenId>> prompts;
  for (const VectorInput& input : inputs) {
    if (client->disconnected()) return ApiError{.status = kStatusClientGone};
    Parsed<std::vector<TokenId>> tokens = EncodeInput(model, options, input, client);
    if (auto* error = std::get_if<ApiError>(&tokens)) {
      error->param = input.where.substr(0, input.where.find('['));
      return std::move(*error);
    }
    prompts.push_back(std::move(std::get<std::vector<TokenId>>(tokens)));
  }
  return prompts;
}

Json EmbeddingList(const EmbeddingRequest& request, Vectors vectors) {
  Json data = Json::array();
  for (std::vector<float>& vector : vectors) {
    const std::vector<float> shaped =
        ShapeVector(std::move(vector), request.dimensions, request.normalize);
    data.push_back({{"object", "embedding"},
                    {"index", data.size()},
                    {"embedding", request.base64 ? Json(Base64Of(shaped)) : Json(shaped)}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

void Normalize(Vectors& vectors) {
  for (std::vector<float>& vector : vectors) vector = ShapeVector(std::move(vector), {}, true);
}

Json ScoreList(size_t first, Vectors vectors) {
  Normalize(vectors);
  Json data = Json::array();
  for (size_t i = first; i < vectors.size(); ++i) {
    const std::vector<float>& one = vectors[first == 1 ? 0 : i - first];
    data.push_back({{"object", "score"}, {"index", i - first}, {"score", Cosine(one, vectors[i])}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

// The best first; equal ones in the order of the documents.
Json Ranking(const RerankRequest& request, Vectors vectors) {
  Normalize(vectors);
  const size_t documents = vectors.size() - 1;
  std::vector<double> scores(documents);
  for (size_t i = 0; i < documents; ++i) scores[i] = Cosine(vectors[0], vectors[i + 1]);
  std::vector<size_t> order(documents);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (request.top_n) order.resize(std::min<size_t>(documents, static_cast<size_t>(*request.top_n)));
  Json results = Json::array();
  for (const size_t i : order) {
    Json& result = results.emplace_back(Json{{"index", i}, {"relevance_score", scores[i]}});
    if (!request.return_documents) continue;
    result["document"] = {{"text", std::get<std::string>(request.inputs[i + 1].prompt)}};
  }
  return {{"results", std::move(results)}};
}

}  // namespace

template <typename Request>
void VectorRoutes::Make(Call call, const char* id_prefix,
                        Parsed<Request> (*parse)(const Json& body, const ParseContext& context),
                        Json (*answer)(const Request& request, Vectors vectors),
                        const OrderedJson* made, const VectorForm& form) {
  std::shared_ptr<ModelContext> loaded = host_.loaded(call);
  if (!loaded) return;
  const Time arrived = loaded->clock.Now();
  if (host_.draining()) return call.Refuse(Draining());
  const Parsed<Json> body = made != nullptr ? Json(*made) : ParseBody(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&body)) return call.Refuse(*error);
  Parsed<Request> parsed = parse(std::get<Json>(body), loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.Refuse(*error);
  std::string& ignored = std::get<Request>(parsed).options.ignored;
  ignored = JoinIgnored(ignored, form.ignored,
                        [&](std::string_view name) { return form.names.Of(name); });
  auto request = std::make_shared<const Request>(std::move(std::get<Request>(parsed)));
  const VectorOptions& options = request->options;
  const auto name = host_.served_name(options.model);
  if (!name) return call.Refuse(ModelNotFound(options.model));
  auto prompts = EncodeInputs(loaded->model, options, request->inputs, call.reply.get());
  if (auto* error = std::get_if<ApiError>(&prompts)) return call.Refuse(*error);

  EmbeddingSpec spec{.options = options,
                     .prompts = std::move(std::get<std::vector<std::vector<TokenId>>>(prompts)),
                     .id = host_.new_id(id_prefix),
                     .request_id = call.request_id,
                     .route = call.request.path,
                     .cache_salt = call.owner + options.cache_salt,
                     .owner = call.owner,
                     .arrived = arrived,
                     .trace = call.trace,
                     .answer = {},
                     .refuse = {}};
  const int64_t tokens = spec.prompt_tokens();
  const int64_t created = std::time(nullptr);
  spec.answer = [=, id = spec.id, name = *name, form = form.answer](
                    Vectors vectors, const std::string& fingerprints) {
    Json body = answer(*request, std::move(vectors));
    body["id"] = id;
    body["created"] = created;
    body["model"] = name;
    body["usage"] = {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
    body["system_fingerprint"] = fingerprints.empty() ? Json() : Json(fingerprints);
    return form ? form(body) : body;
  };
  const std::shared_ptr<net::HttpReply> reply = call.reply;
  call.request.body.clear();
  spec.refuse = [call = std::move(call)](const ApiError& error) { call.Refuse(error); };
  Embedding::Begin(std::move(loaded), std::move(spec), reply);
}

void VectorRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* path, void (VectorRoutes::*member)(Call)) {
    table.Add({"POST", path, Access::kKeyed,
               [this, member](Call call) { (this->*member)(std::move(call)); }, PathKind::kExact});
  };
  add("/v1/embeddings", &VectorRoutes::OwnEmbeddings);
  for (const char* path : {"/v1/score", "/score"}) add(path, &VectorRoutes::Score);
  for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank"}) add(path, &VectorRoutes::Rerank);
}

void VectorRoutes::OwnEmbeddings(Call call) {
  Make(std::move(call), "embd-", ParseEmbeddingRequest, EmbeddingList);
}

void VectorRoutes::Embeddings(Call call, const OrderedJson& body, const VectorForm& form) {
  Make(std::move(call), "embd-", ParseEmbeddingRequest, EmbeddingList, &body, form);
}

void VectorRoutes::Score(Call call) {
  Make<ScoreRequest>(std::move(call), "score-", ParseScoreRequest,
                     [](const ScoreRequest& request, Vectors vectors) {
                       return ScoreList(request.first, std::move(vectors));
                     });
}

void VectorRoutes::Rerank(Call call) {
  Make(std::move(call), "rerank-", ParseRerankRequest, Ranking);
}

}  // namespace millrace::serve
