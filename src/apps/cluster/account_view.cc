#include "apps/cluster/account_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cluster/json_fields.h"
#include "apps/common/text_table.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr double kBarChars = 30;
// Entries with a smaller share are shown together.
constexpr double kLeastShare = 0.0005;

struct EntryView {
  std::string use, cause, from, requests;
  double seconds = 0, pull_s = 0;
  int64_t steps = 0, tokens = 0, others = 0, running = 0, others_tokens = 0, bytes = 0;
  int64_t layers_begin = 0, layers_end = 0;

  bool Is(std::string_view u, std::string_view c) const { return use == u && cause == c; }
};

// What an operator can do about it. An empty cause stands for any.
struct Advice {
  std::string_view use, cause, what, cure;
};

// The first that fits.
constexpr Advice kAdvice[] = {
    {"prepare", "", "reading and tokenizing its body",
     "smaller bodies, or more cores for the server"},
    {"queue", "kv_blocks", "queueing: KV blocks were full",
     "more KV memory (--kv-cache-memory), more workers, or fewer requests at a time"},
    {"queue", "max_num_seqs", "queueing: all places of --max-num-seqs were taken",
     "a larger --max-num-seqs if KV memory is left, or more workers"},
    {"queue", "step_full", "queueing: requests before it filled the steps",
     "more workers, or a larger --max-num-batched-tokens"},
    {"queue", "step_in_flight", "waiting for the step in flight to end",
     "a lower --max-num-batched-tokens, so that steps are shorter"},
    {"queue", "kv_reservation", "queueing: no KV was left to reserve",
     "more KV memory (--kv-cache-memory), or --kv-policy paged"},
    {"queue", "no_pipeline", "waiting for workers: no pipeline was open",
     "start the workers that lack; millrace status names the layers that nobody has"},
    {"queue", "no_room", "queueing: no pipeline had room",
     "more workers, or fewer requests at a time"},
    {"queue", "numeric_class", "waiting for workers that compute its bits",
     "start such a worker, or the controller with --cross-class-replay"},
    {"queue", "", "queueing", "more workers, or fewer requests at a time"},
    {"prefill", "", "computing its prompt",
     "a shorter prompt, one that begins like others (the prefix cache), or faster workers"},
    {"decode", "prompts_of_others", "decoding in steps that also computed prompts of others",
     "--slo with a time per token, a lower --max-num-batched-tokens, or workers for prompts alone"},
    {"decode", "", "decoding, at the pace of these workers",
     "fewer requests at a time, faster workers, or a smaller max_tokens"},
    {"recompute", "preemption", "computing again what a preemption had dropped",
     "more KV memory (--kv-cache-memory), a lower --max-num-seqs, or --swap-space"},
    {"recompute", "pipeline_lost", "computing again what a lost pipeline took along",
     "millrace status and the workers' logs say why it was lost"},
    {"recompute", "", "computing tokens again", "more KV memory (--kv-cache-memory)"},
    {"wait", "prompts_of_others", "waiting behind prompts of others",
     "--slo with a time per token, a lower --max-num-batched-tokens, or workers for prompts alone"},
    {"wait", "kv_blocks", "waiting for KV blocks to go on",
     "more KV memory (--kv-cache-memory), or a lower --max-num-seqs"},
    {"wait", "paused", "being moved to other workers", "nothing, unless it happens often"},
    {"wait", "steps_of_others", "waiting for its turn among the steps of others",
     "more workers, or fewer requests at a time"},
    {"wait", "", "between two steps", "a faster machine for the controller, or one nearer to it"},
    {"preempted", "", "waiting without its KV blocks, which went to others",
     "more KV memory (--kv-cache-memory), or a lower --max-num-seqs"},
    {"swapped", "", "swapped out, while others had its KV blocks",
     "more KV memory (--kv-cache-memory), or a lower --max-num-seqs"},
    {"requeue", "pipeline_lost", "waiting for another pipeline, because its own was lost",
     "millrace status and the workers' logs say why it was lost; a spare worker shortens the wait"},
    {"requeue", "hand_over", "waiting for a place where it decodes",
     "more workers for decoding, or more KV memory there"},
    {"requeue", "controller_restart", "waiting for the controller, which was started again",
     "its log says why"},
    {"requeue", "", "waiting for another pipeline", "more workers, or more KV memory"},
    {"pull", "", "fetching its KV from other workers", "a faster link between these workers"},
    {"deliver", "", "turning the end of its answer into text and writing it",
     "a client that reads faster, or more cores for the server"},
};

EntryView ReadEntry(const Json& json) {
  EntryView e{.use = TextField(json, "use"),
              .cause = TextField(json, "cause"),
              .from = TextField(json, "from", 200),
              .requests = {},
              .seconds = RealField(json, "seconds"),
              .pull_s = RealField(json, "pull_s"),
              .steps = IntegerField(json, "steps"),
              .tokens = IntegerField(json, "tokens"),
              .running = IntegerField(json, "requests_running"),
              .bytes = IntegerField(json, "bytes")};
  e.others =
      IntegerField(json, HasNumber(json, "requests_ahead") ? "requests_ahead" : "other_requests");
  e.others_tokens = IntegerField(
      json, HasNumber(json, "prompt_tokens_ahead") ? "prompt_tokens_ahead" : "other_tokens");
  if (const auto layers = json.find("layers");
      layers != json.end() && layers->is_array() && layers->size() == 2) {
    if ((*layers)[0].is_number_integer()) e.layers_begin = (*layers)[0].get<int64_t>();
    if ((*layers)[1].is_number_integer()) e.layers_end = (*layers)[1].get<int64_t>();
  }
  const auto ids = json.find("requests");
  if (ids != json.end() && ids->is_array()) {
    for (const Json& id : *ids) {
      if (!id.is_number_integer()) continue;
      e.requests += fmt::format("{}{}", e.requests.empty() ? "" : ", ", id.get<int64_t>());
    }
  }
  return e;
}

std::vector<EntryView> ReadEntries(const Json& account) {
  std::vector<EntryView> entries;
  for (const Json& json : ObjectsField(account, "entries")) entries.push_back(ReadEntry(json));
  return entries;
}

const Advice* AdviceFor(const EntryView& e) {
  const auto* found = std::ranges::find_if(kAdvice, [&](const Advice& a) {
    return a.use == e.use && (a.cause.empty() || a.cause == e.cause);
  });
  return found == std::end(kAdvice) ? nullptr : found;
}

std::string Plural(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", FormatCount(n), what, n == 1 ? "" : "s");
}

// "queueing behind 31 requests, 12 of them running (3, 4, 5 ...): KV blocks were full".
std::string WithAhead(std::string_view what, const EntryView& e) {
  const int64_t all = e.others + e.running;
  if (all == 0) return std::string(what);
  std::string text = fmt::format(" behind {}", Plural(all, "request"));
  if (e.running > 0 && e.others > 0) text += fmt::format(", {} of them running", e.running);
  if (!e.requests.empty()) text += fmt::format(" ({}{})", e.requests, all > 3 ? " ..." : "");
  const size_t colon = std::min(what.find(':'), what.size());
  return std::string(what.substr(0, colon)) + text + std::string(what.substr(colon));
}

std::string Beside(const EntryView& e) {
  if (e.others_tokens == 0) return "";
  return fmt::format(", beside {} of {}", Plural(e.others_tokens, "token"),
                     Plural(e.others, "other request"));
}

// The right column: the facts of an entry.
std::string Facts(const EntryView& e) {
  const Advice* advice = AdviceFor(e);
  if (advice == nullptr) return fmt::format("{} {}", e.use, e.cause);
  const bool queues = e.use == "queue" || e.use == "requeue";
  std::string text = queues ? WithAhead(advice->what, e) : std::string(advice->what);
  if (e.steps > 0) {
    text +=
        fmt::format(": {} in {}{}", Plural(e.tokens, "token"), Plural(e.steps, "step"), Beside(e));
  }
  if (e.layers_end > 0)
    text += fmt::format(", layers {}-{} only", e.layers_begin, e.layers_end - 1);
  const bool by_prompts = e.cause == "prompts_of_others";
  if (by_prompts && e.use == "wait") text += fmt::format(": {}", Plural(e.others_tokens, "token"));
  if (by_prompts && !e.requests.empty()) text += fmt::format(" (request {})", e.requests);
  if ((e.use == "preempted" || e.use == "swapped") && !e.requests.empty()) {
    text += fmt::format(": request {}", e.requests);
  }
  if (e.bytes > 0) {
    text += fmt::format(": {}", BytesText(e.bytes));
    if (e.pull_s > 0) {
      text += fmt::format(" in {:.1f} ms, {:.2f} GB/s", e.pull_s * 1e3,
                          static_cast<double>(e.bytes) / e.pull_s / 1e9);
    }
  }
  if (!e.from.empty()) text += fmt::format(" from {}", e.from);
  return text;
}

std::string Seconds(double s) {
  return s < 0.9995 ? fmt::format("{:.0f} ms", s * 1e3) : fmt::format("{:.3g} s", s);
}

// The use and cause that took the most in all.
EntryView Largest(const std::vector<EntryView>& entries) {
  std::vector<EntryView> sums;
  for (const EntryView& e : entries) {
    const auto same =
        std::ranges::find_if(sums, [&](const EntryView& sum) { return sum.Is(e.use, e.cause); });
    if (same == sums.end()) {
      sums.push_back(e);
    } else {
      same->seconds += e.seconds;
      same->tokens += e.tokens;
      same->steps += e.steps;
    }
  }
  return sums.empty() ? EntryView() : *std::ranges::max_element(sums, {}, &EntryView::seconds);
}

std::string ShortVerdict(const Json& account) {
  const double wall = RealField(account, "wall_s");
  const EntryView largest = Largest(ReadEntries(account));
  const Advice* advice = AdviceFor(largest);
  if (advice == nullptr || wall <= 0) return "";
  const bool queues = largest.use == "queue";
  return fmt::format("{:.0f} % of {} was {}", 100 * largest.seconds / wall, Seconds(wall),
                     queues ? WithAhead(advice->what, largest) : std::string(advice->what));
}

std::string Bar(double share) {
  return std::string(static_cast<size_t>(std::lround(share * kBarChars)), '#');
}

std::string Gaps(const Json& account) {
  const auto found = account.find("token_gaps");
  if (found == account.end() || !found->is_object() || IntegerField(*found, "count") == 0)
    return "";
  std::string text = fmt::format("\nBetween tokens: {:.1f} ms on average. The longest:\n",
                                 RealField(*found, "mean_s") * 1e3);
  for (const Json& json : ObjectsField(*found, "largest")) {
    const EntryView gap = ReadEntry(json);
    const Advice* advice = AdviceFor(gap);
    text += fmt::format("  {:>8.1f} ms after {}: {}", gap.seconds * 1e3,
                        Plural(IntegerField(json, "after_tokens"), "token"),
                        advice != nullptr ? advice->what : std::string_view(gap.use));
    if (gap.others_tokens > 0) text += fmt::format(", {}", Plural(gap.others_tokens, "token"));
    if (!gap.requests.empty()) text += fmt::format(" (request {})", gap.requests);
    text += "\n";
  }
  return text;
}

std::string Title(const Json& request, const Json& account) {
  const bool ended = TextField(request, "state") == "finished";
  std::string text =
      fmt::format("Request {} ({}): {}", IntegerField(request, "id"),
                  TextField(request, "response_id", 200), Seconds(RealField(account, "wall_s")));
  text += ended ? fmt::format(" until it ended ({})", TextField(request, "finish_reason"))
                : fmt::format(" so far; it is {}", TextField(request, "state"));
  text += fmt::format("; {} of prompt, {} generated\n",
                      Plural(IntegerField(request, "prompt_tokens"), "token"),
                      FormatCount(IntegerField(request, "output_tokens")));
  const std::string waits = TextField(request, "waits_for", 400);
  if (!waits.empty()) text += fmt::format("It waits for {}.\n", waits);
  return text;
}

const Json* AccountIn(const Json& request) {
  const auto account = request.find("account");
  return account != request.end() && account->is_object() ? &*account : nullptr;
}

}  // namespace

std::string AccountVerdict(const Json& request) {
  const Json* account = AccountIn(request);
  if (account == nullptr) return "";
  const std::string verdict = ShortVerdict(*account);
  if (verdict.empty()) return "";
  return fmt::format("{}. Cure: {}.", verdict, AdviceFor(Largest(ReadEntries(*account)))->cure);
}

std::string FormatAccount(const Json& request) {
  const Json* account = AccountIn(request);
  if (account == nullptr) {
    return fmt::format("Request {} is {}; the server has no account of its time.\n",
                       IntegerField(request, "id"), TextField(request, "state"));
  }
  const double wall = std::max(RealField(*account, "wall_s"), 1e-9);
  std::string text = Title(request, *account) + "\n";
  double little = 0;
  const auto line = [&](std::string_view use, double seconds, const std::string& facts) {
    const double share = seconds / wall;
    text += fmt::format("{:<9} {:>10.1f} ms {:>5.1f} %  {:<30}  {}\n", use, seconds * 1e3,
                        share * 100, Bar(std::min(share, 1.0)), facts);
  };
  for (const EntryView& entry : ReadEntries(*account)) {
    if (entry.seconds < kLeastShare * wall) {
      little += entry.seconds;
      continue;
    }
    line(entry.use, entry.seconds, Facts(entry));
  }
  if (little > 0) line("", little, "what took less than 0.05 % each");
  text += Gaps(*account);
  return fmt::format("{}\n{}\n", text, AccountVerdict(request));
}

std::string FormatSlowest(const Json& answer) {
  std::vector<std::vector<std::string>> rows = {{"REQUEST", "TIME", "PROMPT", "OUTPUT", "WHY"}};
  for (const Json& request : ObjectsField(answer, "requests")) {
    const Json* account = AccountIn(request);
    if (account == nullptr) continue;
    rows.push_back(
        {std::to_string(IntegerField(request, "id")), Seconds(RealField(*account, "wall_s")),
         std::to_string(IntegerField(request, "prompt_tokens")),
         std::to_string(IntegerField(request, "output_tokens")), ShortVerdict(*account)});
  }
  if (rows.size() == 1) return "No request has ended so far.\n";
  return TextTable(rows);
}

}  // namespace millrace::apps
