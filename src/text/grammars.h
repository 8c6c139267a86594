// Grammars: compiles what constrained outputs must match (core/output_grammar.h) for one vocabulary
// with the crate llguidance, and makes matchers.
//
// The server and the workers of a process that use the same token table share one object. It owns a
// thread, on which it compiles what it is asked for; whoever needs a grammar that is not compiled
// yet compiles it there and then. Newest grammars are kept. All limits count work, not time, so
// whether a grammar is accepted does not depend on the machine's speed.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "core/output_grammar.h"

namespace millrace::text {

class Grammars : public GrammarSource {
 public:
  static constexpr size_t kCachedMax = 64;    // compiled grammars
  static constexpr size_t kQueuedMax = 1024;  // that wait to be compiled in the background

  // Returns at once; the thread begins with the table.
  static std::shared_ptr<Grammars> Of(const TokenTable& table);
  ~Grammars() override;

  // Compiles it, or waits until it is compiled. kInvalidArgument, with one line: it is unsound or
  // too complex, or the token table is malformed.
  Status Check(const std::string& grammar);
  // What Check would return if it need not wait.
  std::optional<Status> Known(const std::string& grammar);
  // The same grammar as workers and journals of the version before know it: GBNF has become Lark.
  // REQUIRES: Check has returned ok.
  std::string WithoutGbnf(const std::string& grammar);
  std::unique_ptr<TokenMatcher> MatcherOf(const std::string& grammar) override;

 private:
  class Vocabulary;
  class Compiled;
  class Matcher;

  explicit Grammars(const TokenTable& table);
  std::shared_ptr<Compiled> Find(const std::string& grammar) MR_REQUIRES(mutex_);
  void Work();

  const std::shared_ptr<Vocabulary> vocabulary_;
  Mutex mutex_;
  CondVar queued_;
  // The newest first.
  std::list<std::shared_ptr<Compiled>> kept_ MR_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Compiled>> queue_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::text
