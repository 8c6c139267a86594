// POST /v1/completions, POST /v1/chat/completions and GET /v1/streams/{response id}.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "serve/apis/kept_chat_reply.h"
#include "serve/generation/generation.h"
#include "serve/generation/tool_use.h"
#include "serve/http/decorated_reply.h"
#include "serve/request/mask_check.h"
#include "serve/service_impl.h"

namespace millrace::serve {
namespace {

constexpr size_t kGrammarErrorBytesMax = 500;

// The field that an error of a grammar is about, and the error without what tells that: the rules
// and structures of a grammar of several schemas are numbered (text/tool_grammar.h).
std::pair<std::string, std::string_view> PartOf(const GenerationOptions& options,
                                                std::string_view error) {
  for (size_t i = 0; i < options.constraint_parts.size(); ++i) {
    for (const std::string& begin :
         {fmt::format("arguments_{}: ", i), fmt::format("structures[{}]: ", i)}) {
      if (error.starts_with(begin)) {
        return {options.constraint_parts[i], error.substr(begin.size())};
      }
    }
  }
  return {options.constraint_field, error};
}

std::vector<int> Lengths(const std::vector<PromptInput>& prompts) {
  std::vector<int> lengths;
  for (const PromptInput& prompt : prompts)
    lengths.push_back(static_cast<int>(prompt.tokens.size()));
  return lengths;
}

// Encodes the prompts of a completion, and keeps the text of each if it is echoed.
Parsed<std::vector<PromptInput>> EncodePrompts(const ServedModel& model,
                                               const CompletionRequest& request,
                                               const net::HttpReply& client) {
  std::vector<PromptInput> inputs;
  const EncodeUse use{.truncation = request.options.truncation, .client = &client};
  const text::EncodeOptions options{.add_special_tokens = request.add_special_tokens,
                                    .parse_special = request.parse_special};
  for (const Prompt& prompt : request.prompts) {
    if (client.disconnected()) return ApiError{.status = kStatusClientGone};
    PromptInput& input = inputs.emplace_back();
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      Parsed<std::vector<TokenId>> tokens = EncodeText(model, *text, options, "prompt", use);
      if (auto* error = std::get_if<ApiError>(&tokens)) return std::move(*error);
      input.tokens = std::move(std::get<std::vector<TokenId>>(tokens));
      if (request.echo) input.echo = *text;
    } else {
      input.tokens = std::get<std::vector<TokenId>>(prompt);
      if (request.echo) {
        input.echo =
            model.tokenizer->Decode(input.tokens, request.options.params.skip_special_tokens);
      }
    }
  }
  return inputs;
}

// What the model's length leaves for a prompt.
int PromptRoom(const GenerationOptions& options, int max_model_len) {
  const int wanted = options.params.max_tokens.value_or(1);
  if (options.clamps_length && wanted >= max_model_len) return max_model_len - 1;
  return std::max(max_model_len - wanted, 1);
}

// The client of a stream that is kept as the chunks of a chat.
std::shared_ptr<net::HttpReply> ReaderOf(const std::shared_ptr<net::HttpReply>& reply,
                                         const std::shared_ptr<AnswerWriter>& writer) {
  if (!writer) return reply;
  return std::make_shared<KeptChatReply>(reply, writer);
}

// The body, with a max_tokens that was lowered: `millrace verify` asks a server that may refuse.
std::string BodyForLog(const GenerationSpec& spec, const std::string& body) {
  const std::optional<int>& asked = spec.options.params.max_tokens;
  if (!asked || spec.prompts.size() != 1 || spec.prompts[0].max_tokens >= *asked) return body;
  auto changed = nlohmann::ordered_json::parse(body);
  changed.erase("max_completion_tokens");
  changed["max_tokens"] = spec.prompts[0].max_tokens;
  return changed.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void Service::Impl::Completions(Call call) {
  if (Resumed(call, nullptr)) return;
  const Time arrived = clock_.Now();
  std::shared_ptr<ModelContext> loaded = LoadedOrReply(call);
  if (!loaded) return;
  if (state_ == ServiceState::kDraining) return call.Refuse(Draining());
  if (!loaded->model.spec.generates) return call.Refuse(EmbeddingsOnly());
  Parsed<CompletionRequest> parsed = ParseCompletionRequest(call.request.body, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.Refuse(*error);
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  const auto name = ServedName(request.options.model);
  if (!name) return call.Refuse(ModelNotFound(request.options.model));
  Parsed<std::vector<PromptInput>> prompts = EncodePrompts(loaded->model, request, *call.reply);
  if (auto* error = std::get_if<ApiError>(&prompts)) return call.Refuse(*error);

  GenerationSpec spec;
  spec.prompts = std::move(std::get<std::vector<PromptInput>>(prompts));
  spec.format.prompt_logprobs = request.wants_prompt_logprobs;
  spec.echo = request.echo;
  spec.echo_only = request.echo_only;
  spec.head.model = *name;
  spec.arrived = arrived;
  spec.options = std::move(request.options);
  const std::string id = ResponseId("cmpl-", spec.options);
  Begin(std::move(loaded), std::move(call), std::move(spec), id);
}

// `made`: of another API's request, which `writer` answers; null: the call's body is the request.
void Service::Impl::Chat(Call call, const OrderedJson* made, std::shared_ptr<AnswerWriter> writer) {
  if (writer) call.refusal = [writer](const ApiError& error) { return writer->Refusal(error); };
  // `millrace verify` asks again what the log has.
  if (made != nullptr) {
    const bool logs = options_.request_log != nullptr;
    call.request.body =
        logs ? made->dump(-1, ' ', false, OrderedJson::error_handler_t::replace) : "";
  }
  if (Resumed(call, writer)) return;
  const Time arrived = clock_.Now();
  std::shared_ptr<ModelContext> loaded = LoadedOrReply(call);
  if (!loaded) return;
  if (state_ == ServiceState::kDraining) return call.Refuse(Draining());
  if (!loaded->model.spec.generates) return call.Refuse(EmbeddingsOnly());
  Parsed<ChatRequest> parsed = made != nullptr
                                   ? ParseChatObject(*made, loaded->context)
                                   : ParseChatRequest(call.request.body, loaded->context);
  if (auto* error = std::get_if<ApiError>(&parsed)) return call.Refuse(*error);
  ChatRequest& request = std::get<ChatRequest>(parsed);
  const auto name = ServedName(request.options.model);
  if (!name) return call.Refuse(ModelNotFound(request.options.model));
  if (call.reply->disconnected()) return;
  Parsed<std::string> prompt = RenderConversation(loaded->model, request.conversation);
  if (auto* error = std::get_if<ApiError>(&prompt)) return call.Refuse(*error);
  Parsed<std::vector<TokenId>> tokens =
      EncodeRendered(loaded->model, std::get<std::string>(prompt),
                     {.truncation = request.options.truncation, .client = call.reply.get()});
  if (auto* error = std::get_if<ApiError>(&tokens)) return call.Refuse(*error);

  GenerationSpec spec;
  if (const auto error =
          PrepareAnswer(loaded->model, std::get<std::string>(prompt), request, spec.split)) {
    return call.Refuse(*error);
  }
  spec.prompts.push_back({.tokens = std::move(std::get<std::vector<TokenId>>(tokens))});
  spec.format.chat = true;
  spec.writer = std::move(writer);
  spec.format.prompt_logprobs = request.options.params.prompt_logprobs.has_value();
  spec.head.model = *name;
  spec.arrived = arrived;
  spec.options = std::move(request.options);
  const std::string id = ResponseId("chatcmpl-", spec.options);
  Begin(std::move(loaded), std::move(call), std::move(spec), id);
}

// The common part of the two endpoints, once the prompts are tokens.
void Service::Impl::Begin(std::shared_ptr<ModelContext> model_context, Call call,
                          GenerationSpec spec, const std::string& id) {
  if (spec.options.params.grammar.empty()) {
    BeginCompiled(std::move(model_context), std::move(call), std::move(spec), id);
  } else {
    BeginConstrained(std::move(model_context), std::move(call), std::move(spec), id);
  }
}

void Service::Impl::BeginConstrained(std::shared_ptr<ModelContext> model_context, Call call,
                                     GenerationSpec spec, const std::string& id) {
  const auto& grammars = model_context->model.grammars;
  const std::string field = spec.options.constraint_field;
  if (!grammars.ok()) {
    return call.Refuse(UnsupportedField(field, field + ": " + grammars.status().message()));
  }
  const std::string grammar = spec.options.params.grammar;
  auto begin = [this, field, model_context, call, spec, id,
                grammars = *grammars](const Status& compiled) mutable {
    if (compiled.code() == StatusCode::kInternal) return call.Refuse(FromStatus(compiled));
    if (!compiled.ok()) {
      const auto [part, cause] = PartOf(spec.options, compiled.message());
      const std::string why = Printable(cause, kGrammarErrorBytesMax);
      return call.Refuse(
          BadField(field, fmt::format("{} cannot be used to constrain the output: {}", part, why)));
    }
    // Workers of the version before do not know GBNF.
    spec.options.params.grammar = grammars->WithoutGbnf(spec.options.params.grammar);
    BeginCompiled(std::move(model_context), std::move(call), std::move(spec), id);
  };
  if (const auto known = (*grammars)->Known(grammar)) return begin(*known);
  registry_.Enter();
  const bool taken = compiling_.TryPost([this, begin, grammar, grammars = *grammars]() mutable {
    const RequestRegistry::LeaveAtEnd leave(registry_);
    const Status tried = options_.try_grammar ? options_.try_grammar(grammar) : OkStatus();
    begin(tried.ok() ? grammars->Check(grammar) : tried);
  });
  if (taken) return;
  registry_.Leave();
  call.Refuse(FromStatus(
      ResourceExhausted("Too many new grammars wait to be compiled; try again in a moment.")));
}

namespace {

std::optional<ApiError> CheckMasks(const ServedModel& model, const GenerationOptions& options) {
  const SamplingParams& params = options.params;
  if (params.allowed_token_ids.empty() && params.bad_words.empty()) return std::nullopt;
  FirstToken first{.vocab_size = model.spec.vocab_size, .eos = model.end_tokens};
  std::unique_ptr<TokenMatcher> matcher;  // the span is its
  if (!params.grammar.empty() && model.grammars.ok()) {
    matcher = (*model.grammars)->MatcherOf(params.grammar);
    const auto allowed = matcher->Allowed({});
    if (!allowed.ok()) return FromStatus(allowed.status());
    first.constraint = *allowed;
    first.constraint_field = options.constraint_field;
  }
  return CheckFirstToken(params, first);
}

}  // namespace

void Service::Impl::BeginCompiled(std::shared_ptr<ModelContext> model_context, Call call,
                                  GenerationSpec spec, const std::string& id) {
  if (!spec.options.bad_words.empty()) {
    auto words = BadWordTokens(model_context->model, spec.options.bad_words);
    if (auto* error = std::get_if<ApiError>(&words)) return call.Refuse(*error);
    spec.options.params.bad_words = std::move(std::get<0>(words));
  }
  if (const auto error = CheckMasks(model_context->model, spec.options)) return call.Refuse(*error);
  spec.options.clamps_length = call.clamps_max_tokens || options_.clamps_max_tokens;
  const int room = PromptRoom(spec.options, model_context->model.max_model_len);
  for (PromptInput& prompt : spec.prompts) {
    Truncate(spec.options.truncation, room, prompt.tokens);
  }
  Parsed<FittedLengths> fitted =
      FitLengths(spec.options, model_context->context, Lengths(spec.prompts));
  if (auto* error = std::get_if<ApiError>(&fitted)) {
    if (error->param.empty()) error->param = spec.format.chat ? "messages" : "prompt";
    return call.Refuse(*error);
  }
  const std::vector<int>& max_tokens = std::get<FittedLengths>(fitted).max_tokens;
  for (size_t i = 0; i < spec.prompts.size(); ++i) spec.prompts[i].max_tokens = max_tokens[i];
  const GenerationOptions& options = spec.options;
  spec.format.stream = options.stream;
  spec.format.include_usage = options.include_usage;
  spec.format.continuous_usage = options.continuous_usage;
  spec.format.metrics = options.metrics;
  spec.format.ignored = options.ignored;
  spec.head.id = id;
  spec.head.created = UnixSeconds();
  spec.request_id = call.request_id;
  spec.route = call.request.path;
  spec.owner = call.owner;
  spec.trace = call.trace;
  spec.cache_salt = call.owner + options.cache_salt;
  if (model_context->log != nullptr) spec.body = BodyForLog(spec, call.request.body);
  std::shared_ptr<net::HttpReply> reply = call.reply;
  if (call.in_background) {
    spec.event_per_token = options.stream;
  } else if (keeper_ && options.stream) {
    const auto client = ReaderOf(call.reply, spec.writer);
    const auto kept = keeper_->Keep(call.owner, id, client);
    if (kept != client) {
      reply = kept;
      spec.resumable = spec.event_per_token = true;
      spec.writer = nullptr;
    }
  }
  Generation::Begin(std::move(model_context), std::move(spec), std::move(reply));
}

bool Service::Impl::Resumed(const Call& call, const std::shared_ptr<AnswerWriter>& writer) {
  const auto last_event_id = call.request.Header("last-event-id");
  if (!keeper_ || !last_event_id) return false;
  if (!LoadedOrReply(call)) return true;  // the stream may be one of the previous run
  const std::optional<StreamPosition> position = ParseStreamPosition(*last_event_id);
  const std::optional<ApiError> error =
      position ? keeper_->Resume(call.owner, *position, ReaderOf(call.reply, writer))
               : BadField("Last-Event-ID", "Last-Event-ID must be the id of a stream's event.");
  if (error) call.Refuse(*error);
  return true;
}

void Service::Impl::ResumeStream(Call call) {
  if (!LoadedOrReply(call)) return;
  StreamPosition position{.response_id = call.rest};
  if (const auto last_event_id = call.request.Header("last-event-id")) {
    const std::optional<StreamPosition> delivered = ParseStreamPosition(*last_event_id);
    if (!delivered || delivered->response_id != call.rest) {
      return call.Refuse(
          BadField("Last-Event-ID", "Last-Event-ID must be the id of an event of this stream."));
    }
    position = *delivered;
  }
  const auto error = call.request.method == "HEAD"
                         ? keeper_->SendHead(call.owner, position, *call.reply)
                         : keeper_->Resume(call.owner, position, call.reply);
  if (error) call.Refuse(*error);
}

std::string Service::Impl::ResponseId(const std::string& prefix, const GenerationOptions& options) {
  return options.request_id.empty() ? NewId(prefix, next_id_.fetch_add(1))
                                    : prefix + options.request_id;
}

}  // namespace millrace::serve
