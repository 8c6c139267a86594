#include "serve/ollama_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>

#include "base/sha256.h"
#include "serve/apis/ollama_writer.h"
#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

constexpr int kNotImplemented = 501;
// The model is never unloaded.
constexpr char kNever[] = "9999-12-31T23:59:59Z";

void SendError(const Call& call, const std::string& message, int status) {
  call.reply->Send(JsonResponse({{"error", message}}, status));
}

// "LlamaForCausalLM" is of the family "llama".
std::string FamilyOf(const ModelSpec& spec) {
  std::string family = spec.architecture.substr(0, spec.architecture.find("For"));
  std::ranges::transform(family, family.begin(), [](unsigned char c) { return std::tolower(c); });
  return family;
}

// "6.74B", as ollama writes sizes.
std::string SizeText(int64_t parameters) {
  constexpr std::pair<double, char> kUnits[] = {{1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
  for (const auto& [unit, letter] : kUnits) {
    const double number = static_cast<double>(parameters) / unit;
    if (number >= 1) return fmt::format("{:.{}f}{}", number, letter == 'B' ? 1 : 2, letter);
  }
  return std::to_string(parameters);
}

const char* QuantizationOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
  }
  return "";
}

Json DetailsOf(const ModelSpec& spec) {
  const std::string family = FamilyOf(spec);
  return {{"parent_model", ""},
          {"format", "safetensors"},
          {"family", family},
          {"families", {family}},
          {"parameter_size", SizeText(spec.num_parameters)},
          {"quantization_level", QuantizationOf(spec.dtype)}};
}

// Tells models apart by what is known of them here; it is no digest of their files.
std::string DigestOf(const ServedModel& model) {
  const ModelSpec& spec = model.spec;
  const Json facts = {spec.architecture,
                      spec.num_layers,
                      spec.hidden_size,
                      spec.num_heads,
                      spec.num_kv_heads,
                      spec.head_dim,
                      spec.vocab_size,
                      spec.num_parameters,
                      spec.weight_bytes,
                      DTypeName(spec.dtype),
                      model.chat_template ? model.chat_template->all_sources() : ""};
  return Hex(Sha256Of(DumpJson(facts)));
}

// What the lists of models and of running models say alike.
Json EntryOf(const std::string& name, const ServedModel& model) {
  return {{"name", name},
          {"model", name},
          {"size", model.spec.weight_bytes},
          {"digest", DigestOf(model)},
          {"details", DetailsOf(model.spec)}};
}

Json InfoOf(const std::string& name, const ServedModel& model) {
  const ModelSpec& spec = model.spec;
  const std::string family = FamilyOf(spec);
  return {{"general.architecture", family},
          {"general.basename", name},
          {"general.parameter_count", spec.num_parameters},
          {"context_length", model.max_model_len},
          {family + ".context_length", model.max_model_len},
          {family + ".embedding_length", spec.hidden_size},
          {family + ".block_count", spec.num_layers},
          {family + ".feed_forward_length", spec.intermediate_size},
          {family + ".attention.head_count", spec.num_heads},
          {family + ".attention.head_count_kv", spec.num_kv_heads},
          {family + ".vocab_size", spec.vocab_size}};
}

void Refuse(const Call& call) {
  SendError(call,
            fmt::format("{} {} is not supported: this server has the one model that it was started "
                        "with (millrace serve MODEL), and cannot get, make, copy or remove others",
                        call.request.method, call.request.path.substr(0, 64)),
            kNotImplemented);
}

}  // namespace

void OllamaRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, std::function<void(Call)> handler,
                       PathKind kind = PathKind::kExact, Access access = Access::kKeyed) {
    table.Add({method, path, access, std::move(handler), kind});
  };
  add(
      "GET", "/",
      [](const Call& call) {  // clients look for this text
        call.reply->Send({.status = 200,
                          .headers = {{"content-type", "text/plain; charset=utf-8"}},
                          .body = "Ollama is running"});
      },
      PathKind::kExact, Access::kOpen);
  add("POST", "/api/chat", [this](Call call) { Generate(std::move(call), OllamaRoute::kChat); });
  add("POST", "/api/generate",
      [this](Call call) { Generate(std::move(call), OllamaRoute::kGenerate); });
  add("POST", "/api/embed",
      [this](Call call) { Embed(std::move(call), OllamaEmbedRoute::kEmbed); });
  add("POST", "/api/embeddings",
      [this](Call call) { Embed(std::move(call), OllamaEmbedRoute::kEmbeddings); });
  add("GET", "/api/tags", [this](Call call) { Tags(std::move(call)); });
  add("GET", "/api/ps", [this](Call call) { Running(std::move(call)); });
  add("POST", "/api/show", [this](Call call) { Show(std::move(call)); });
  add("POST", "/api/pull", Refuse);
  add("POST", "/api/push", Refuse);
  add("POST", "/api/create", Refuse);
  add("POST", "/api/copy", Refuse);
  add("DELETE", "/api/delete", Refuse);
  add(
      "GET", "/api/blobs/",
      [](const Call& call) {  // HEAD asks whether there is one
        SendError(call, "this server keeps no blobs", 404);
      },
      PathKind::kPrefix);
  add("POST", "/api/blobs/", Refuse, PathKind::kPrefix);
}

void OllamaRoutes::Generate(Call call, OllamaRoute route) {
  Parsed<OllamaRequest> parsed =
      ReadOllamaRequest(call.request.body, {.route = route, .reasons = ModelReasons(routes_)});
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return call.reply->Send(OllamaWriter(route, {}, {}).Refusal(*error));
  }
  auto& request = std::get<OllamaRequest>(parsed);
  if (request.load) return Load(std::move(call), route, *request.load);
  call.clamps_max_tokens = true;
  auto& [chat, ignored, names] = request.chat;
  routes_.chat(std::move(call), chat,
               std::make_shared<OllamaWriter>(route, std::move(names), std::move(ignored)));
}

void OllamaRoutes::Load(Call call, OllamaRoute route, const OllamaLoad& load) {
  if (!routes_.loaded(call)) return;
  const auto name = routes_.served_name(load.model);
  if (!name) return SendError(call, ModelNotFound(load.model).message, 404);
  net::HttpResponse response = JsonResponse(OllamaLoadAnswer(*name, UnixSeconds(), load, route));
  if (!load.ignored.empty()) response.headers.emplace_back(kIgnoredHeader, load.ignored);
  call.reply->Send(std::move(response));
}

void OllamaRoutes::Embed(Call call, OllamaEmbedRoute route) {
  const auto begun = std::chrono::steady_clock::now();
  const auto translated = EmbeddingOfOllama(call.request.body, route);
  const auto* made = std::get_if<TranslatedRequest>(&translated);
  const auto writer = std::make_shared<OllamaWriter>(
      OllamaRoute::kGenerate, made ? made->names : FieldNames(), made ? made->ignored : "");
  call.refusal = [writer](const ApiError& error) { return writer->Refusal(error); };
  if (made == nullptr) return call.Refuse(std::get<ApiError>(translated));
  const auto answer = [route, begun](const Json& embeddings) {
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
    return OllamaEmbedAnswer(embeddings, route, took.count());
  };
  routes_.embeddings(std::move(call), made->chat, {made->names, made->ignored, answer});
}

void OllamaRoutes::Tags(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  Json models = Json::array();
  for (const std::string& name : routes_.names) {
    models.push_back(EntryOf(name, loaded->model));
    models.back()["modified_at"] = OllamaTime(loaded->created);
  }
  call.reply->Send(JsonResponse({{"models", std::move(models)}}));
}

void OllamaRoutes::Running(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  Json models = Json::array();
  for (const std::string& name : routes_.names) {
    models.push_back(EntryOf(name, loaded->model));
    models.back().update({{"expires_at", kNever},
                          {"size_vram", 0},  // it is in the memory of CPUs
                          {"context_length", loaded->model.max_model_len}});
  }
  call.reply->Send(JsonResponse({{"models", std::move(models)}}));
}

void OllamaRoutes::Show(Call call) {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return;
  const Parsed<OllamaShow> parsed = ReadOllamaShow(call.request.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return SendError(call, error->message, error->status);
  }
  const auto& asked = std::get<OllamaShow>(parsed);
  const auto name = routes_.served_name(asked.model);
  if (!name) return SendError(call, ModelNotFound(asked.model).message, 404);
  const ServedModel& model = loaded->model;
  Json capabilities = {"completion"};
  if (model.tool_format != nullptr) capabilities.push_back("tools");
  if (model.reasoning_format != nullptr) capabilities.push_back("thinking");
  net::HttpResponse response =
      JsonResponse({{"modelfile", ""},
                    {"parameters", ""},
                    {"template", model.chat_template ? model.chat_template->source() : ""},
                    {"details", DetailsOf(model.spec)},
                    {"model_info", InfoOf(*name, model)},
                    {"capabilities", std::move(capabilities)},
                    {"modified_at", OllamaTime(loaded->created)}});
  if (!asked.ignored.empty()) response.headers.emplace_back(kIgnoredHeader, asked.ignored);
  call.reply->Send(std::move(response));
}

}  // namespace millrace::serve
