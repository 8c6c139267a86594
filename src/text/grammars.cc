#include "text/grammars.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/task_barrier.h"
#include "text/ffi.h"
#include "text/token_table.h"

namespace millrace::text {
namespace {

// The crate's defaults, except for less memory of states. By the
// crate's documentation, the largest published schemas (FHIR) take half of the work and the
// symbols.
constexpr MrtGrammarLimits kLimits = {.compile_fuel = 1'000'000,
                                      .step_fuel = 200'000,
                                      .step_items_max = 50'000,
                                      .row_items_max = 20'000,
                                      .lexer_states_max = 50'000,
                                      .symbols_max = 500'000};
constexpr size_t kBitsPerWord = 32;

Status EngineFailed(const RustBytes& error) {
  return Internal(
      fmt::format("the engine of grammars failed, by a fault of the server: {}", error.ToString()));
}

}  // namespace

// Made once, by whoever needs it first.
class Grammars::Vocabulary {
 public:
  explicit Vocabulary(TokenTable table) : table_(std::move(table)) {}
  ~Vocabulary() { mrt_vocabulary_free(vocabulary_); }
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  Result<const MrtVocabulary*> Get() {
    std::call_once(once_, [this] { status_ = Make(); });
    MR_RETURN_IF_ERROR(status_);
    return vocabulary_;
  }
  size_t mask_words() const { return (TokensIn(table_) + kBitsPerWord - 1) / kBitsPerWord; }

 private:
  Status Make() {
    MR_RETURN_IF_ERROR(CheckRustAbi());
    RustBytes error;
    const MrtCode code = mrt_vocabulary_new(Data(*table_.bytes), table_.bytes->size(), kLimits,
                                            &vocabulary_, error.out());
    return StatusOf(code, error);
  }

  const TokenTable table_;
  std::once_flag once_;
  MrtVocabulary* vocabulary_ = nullptr;
  Status status_;
};

// One grammar. Compiled once, by whoever needs it first.
class Grammars::Compiled {
 public:
  Compiled(std::shared_ptr<Vocabulary> vocabulary, std::string grammar)
      : vocabulary_(std::move(vocabulary)), grammar_(std::move(grammar)) {}
  ~Compiled() { mrt_grammar_free(compiled_); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  bool Is(const std::string& grammar) const {
    return grammar == grammar_ || (done_ && grammar == without_gbnf_);
  }
  // REQUIRES: Compile has returned ok.
  const std::string& without_gbnf() const { return without_gbnf_; }
  size_t mask_words() const { return vocabulary_->mask_words(); }
  // Held by a matcher while it is made, used or freed: those of one grammar share its caches.
  Mutex& mutex() { return mutex_; }
  bool done() const { return done_; }
  const Status& Compile() {
    std::call_once(once_, [this] {
      status_ = Make();
      done_ = true;
    });
    return status_;
  }
  // REQUIRES: Compile has returned ok.
  Result<MrtMatcher*> NewMatcher() const {
    MrtMatcher* matcher = nullptr;
    RustBytes error;
    MR_RETURN_IF_ERROR(StatusOf(mrt_matcher_new(compiled_, &matcher, error.out()), error));
    return matcher;
  }

 private:
  Status Make() {
    MR_ASSIGN_OR_RETURN(const MrtVocabulary* vocabulary, vocabulary_->Get());
    RustBytes error;
    const MrtCode code =
        mrt_grammar_new(vocabulary, Data(grammar_), grammar_.size(), &compiled_, error.out());
    if (code == MRT_INTERNAL) return EngineFailed(error);
    MR_RETURN_IF_ERROR(StatusOf(code, error));
    RustBytes text;
    mrt_grammar_text(compiled_, text.out());
    without_gbnf_ = text.ToString();
    return OkStatus();
  }

  const std::shared_ptr<Vocabulary> vocabulary_;
  const std::string grammar_;
  std::string without_gbnf_;  // set before done_
  Mutex mutex_;
  std::once_flag once_;
  std::atomic<bool> done_ = false;
  MrtGrammar* compiled_ = nullptr;
  Status status_;
};

class Grammars::Matcher : public TokenMatcher {
 public:
  explicit Matcher(std::shared_ptr<Compiled> grammar) : grammar_(std::move(grammar)) {}
  ~Matcher() override {
    const MutexLock lock(grammar_->mutex());
    matcher_.reset();
  }

  Result<std::span<const uint32_t>> Allowed(std::span<const TokenId> output) override {
    MR_RETURN_IF_ERROR(grammar_->Compile());
    const MutexLock lock(grammar_->mutex());
    auto allowed = Next(output);
    if (!allowed.ok()) matcher_.reset();  // what it has read is not known
    return allowed;
  }

  bool Takes(std::span<const TokenId> output, TokenId next, bool ends) override {
    if (!grammar_->done() || !grammar_->Compile().ok()) return true;
    const MutexLock lock(grammar_->mutex());
    if (ends) {
      const auto allowed = Next(output);
      return !allowed.ok() || InMask(*allowed, next);
    }
    RustBytes error;
    const Result<MrtCode> code = Consume(output, next, error);
    const bool refused = code.ok() && *code == MRT_INVALID;
    if (!code.ok() || *code != MRT_OK) matcher_.reset();
    return !refused;
  }

 private:
  struct Deleter {
    void operator()(MrtMatcher* matcher) const { mrt_matcher_free(matcher); }
  };

  // Reads what it has not read of `output`, and `next`. MRT_INVALID: they do not match.
  Result<MrtCode> Consume(std::span<const TokenId> output, std::optional<TokenId> next,
                          RustBytes& error) {
    // A replay goes back to an earlier position.
    if (!matcher_ || output.size() < consumed_) {
      MR_ASSIGN_OR_RETURN(MrtMatcher * fresh, grammar_->NewMatcher());
      matcher_.reset(fresh);
      consumed_ = 0;
    }
    std::vector<uint32_t> fresh(output.begin() + static_cast<int64_t>(consumed_), output.end());
    if (next) fresh.push_back(static_cast<uint32_t>(*next));
    consumed_ += fresh.size();
    if (fresh.empty()) return MRT_OK;
    return mrt_matcher_consume(matcher_.get(), fresh.data(), fresh.size(), error.out());
  }

  Result<std::span<const uint32_t>> Next(std::span<const TokenId> output) {
    RustBytes error;
    MR_ASSIGN_OR_RETURN(const MrtCode read, Consume(output, std::nullopt, error));
    if (read == MRT_INVALID) {
      return Internal(fmt::format("the output does not match its grammar: {}", error.ToString()));
    }
    MR_RETURN_IF_ERROR(OfStep(read, error));
    mask_.resize(grammar_->mask_words());
    int32_t any = 0;
    const MrtCode code =
        mrt_matcher_mask(matcher_.get(), mask_.data(), mask_.size(), &any, error.out());
    MR_RETURN_IF_ERROR(OfStep(code, error));
    return any != 0 ? std::span<const uint32_t>() : std::span<const uint32_t>(mask_);
  }

  static Status OfStep(MrtCode code, const RustBytes& error) {
    if (code == MRT_INTERNAL) return EngineFailed(error);
    if (code != MRT_LIMIT) return StatusOf(code, error);
    return InvalidArgument(
        fmt::format("the grammar of the output is too complex here: {}", error.ToString()));
  }

  const std::shared_ptr<Compiled> grammar_;
  std::unique_ptr<MrtMatcher, Deleter> matcher_;
  size_t consumed_ = 0;  // tokens
  std::vector<uint32_t> mask_;
};

std::shared_ptr<Grammars> Grammars::Of(const TokenTable& table) {
  static Mutex mutex;
  static auto* const shared = new std::map<std::string, std::weak_ptr<Grammars>>;
  const MutexLock lock(mutex);
  std::erase_if(*shared, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Grammars>& known = (*shared)[table.digest];
  if (auto grammars = known.lock()) return grammars;
  std::shared_ptr<Grammars> grammars(new Grammars(table));
  known = grammars;
  return grammars;
}

Grammars::Grammars(const TokenTable& table)
    : vocabulary_(std::make_shared<Vocabulary>(table)), thread_([this] { Work(); }) {}

Grammars::~Grammars() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  thread_.join();
}

std::shared_ptr<Grammars::Compiled> Grammars::Find(const std::string& grammar) {
  const auto found =
      std::ranges::find_if(kept_, [&](const auto& kept) { return kept->Is(grammar); });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.push_front(std::make_shared<Compiled>(vocabulary_, grammar));
    if (kept_.size() > kCachedMax) kept_.pop_back();
  }
  return kept_.front();
}

Status Grammars::Check(const std::string& grammar) {
  std::shared_ptr<Compiled> compiled;
  {
    const MutexLock lock(mutex_);
    compiled = Find(grammar);
  }
  return compiled->Compile();
}

std::optional<Status> Grammars::Known(const std::string& grammar) {
  const MutexLock lock(mutex_);
  const auto found =
      std::ranges::find_if(kept_, [&](const auto& kept) { return kept->Is(grammar); });
  if (found == kept_.end() || !(*found)->done()) return std::nullopt;
  return (*found)->Compile();
}

std::string Grammars::WithoutGbnf(const std::string& grammar) {
  std::shared_ptr<Compiled> compiled;
  {
    const MutexLock lock(mutex_);
    compiled = Find(grammar);
  }
  return compiled->Compile().ok() ? compiled->without_gbnf() : grammar;
}

std::unique_ptr<TokenMatcher> Grammars::MatcherOf(const std::string& grammar) {
  std::shared_ptr<Compiled> compiled;
  {
    const MutexLock lock(mutex_);
    compiled = Find(grammar);
    if (queue_.size() < kQueuedMax) queue_.push_back(compiled);
  }
  queued_.notify_one();
  return std::make_unique<Matcher>(std::move(compiled));
}

void Grammars::Work() {
  (void)vocabulary_->Get().ok();  // who compiles sees its status
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (queue_.empty()) {
      queued_.wait(lock);
      continue;
    }
    const std::shared_ptr<Compiled> next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    // Whoever uses it sees its status, and compiles it again if that threw.
    RunTask("a grammar", [&] { (void)next->Compile().ok(); });
    lock.lock();
  }
}

}  // namespace millrace::text
