#include "sim/load/workload_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace millrace::sim {
namespace {

constexpr char kTrace[] =
    "arrival_s,prompt_tokens,output_tokens\n"
    "10,100,5\n"
    "12,200,6\n"
    "14,300,7\n";

const std::string kPlainHeader = "arrival_s,prompt_tokens,output_tokens";

std::string Mooncake(int tokens, const std::string& ids) {
  return R"({"timestamp": 0, "input_length": )" + std::to_string(tokens) +
         R"(, "output_length": 5, "hash_ids": )" + ids + "}\n";
}

Result<WorkloadSpec> Parse(std::string_view text) {
  return ParseWorkloadYaml(text, "w.yaml", [](const std::string& path) -> Result<std::string> {
    if (path == "t.csv") return std::string(kTrace);
    if (path == "back.csv") return std::string(kTrace) + "13,1,1\n";
    if (path == "shared.csv")
      return kPlainHeader + ",prefix_id,prefix_tokens\n0,90,1,4,60\n1,9,1,,\n";
    if (path == "long.csv") return kPlainHeader + ",prefix_id,prefix_tokens\n0,90,1,4,91\n";
    if (path == "half.csv") return kPlainHeader + ",prefix_id,prefix_tokens\n0,90,1,4,\n";
    if (path == "named.csv") return kPlainHeader + ",prefix_id,prefix_tokens\n0,90,1,system,5\n";
    if (path == "one.csv") return kPlainHeader + ",prefix_id\n0,90,1,4\n";
    if (path == "hashes.jsonl") return Mooncake(1030, "[7, 8, 9]") + Mooncake(1030, "[7, 6]");
    if (path == "hashes-many.jsonl") return Mooncake(1024, "[7, 8]") + Mooncake(1024, "[7, 8, 9]");
    if (path == "hashes-text.jsonl") return Mooncake(1024, "[7, \"8\"]");
    if (path == "rates.csv") return std::string("1,2,3\n");
    if (path == "words.csv") return std::string("1,two\n");
    if (path == "empty.csv") return std::string("arrival_s,prompt_tokens,output_tokens\n");
    return NotFound(path + ": no such file");
  });
}

WorkloadSpec Good(std::string_view text) {
  auto spec = Parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().ToString();
  return spec.ok() ? *spec : WorkloadSpec{};
}

std::string Error(std::string_view text) { return Parse(text).status().message(); }

std::vector<SimRequest> All(Workload& workload) {
  std::vector<SimRequest> requests;
  while (auto request = workload.Next()) requests.push_back(*request);
  return requests;
}

constexpr char kSynthetic[] =
    "arrivals: poisson\n"
    "rate: 5 req/s\n"
    "requests: 20000\n"
    "lengths:\n"
    "  prompt: {lognormal: {mean: 1000 tokens, sd: 500 tokens, max: 4000 tokens}}\n"
    "  output: {uniform: {min: 1 tokens, max: 128 tokens}}\n"
    "slo: {ttft: 250 ms, tpot: 0.1 s, attainment: 95 %}\n";

TEST(WorkloadFile, DrawsWhatTheFileSays) {
  const WorkloadSpec spec = Good(kSynthetic);
  EXPECT_EQ(spec.limits.ttft_s, 0.25);
  EXPECT_EQ(spec.limits.tpot_s, 0.1);
  EXPECT_DOUBLE_EQ(*spec.limits.attainment, 0.95);
  EXPECT_EQ(spec.Describe(),
            "20,000 requests, Poisson, 5 req/s, prompt lognormal, mean 1000, sd 500 tokens, output "
            "uniform 1 to 128 tokens");
  const auto requests = All(*spec.Make(1));
  ASSERT_EQ(requests.size(), 20000u);
  double prompt = 0, output = 0;
  for (const SimRequest& r : requests) {
    ASSERT_LE(r.prompt_tokens, 4000);
    ASSERT_TRUE(r.output_tokens >= 1 && r.output_tokens <= 128);
    prompt += r.prompt_tokens;
    output += r.output_tokens;
  }
  EXPECT_NEAR(prompt / 20000, 1000, 20);
  EXPECT_NEAR(output / 20000, 64.5, 1.5);
  EXPECT_NEAR(static_cast<double>(requests.back().arrival.ns) * 1e-9, 4000, 120);
  // Another rate, the same lengths.
  const auto faster = All(*spec.Make(1, 50));
  EXPECT_NEAR(static_cast<double>(faster.back().arrival.ns) * 1e-9, 400, 12);
  EXPECT_EQ(faster[7].prompt_tokens, requests[7].prompt_tokens);
  EXPECT_NE(All(*spec.Make(2))[7].prompt_tokens, requests[7].prompt_tokens);
}

TEST(WorkloadFile, GammaGapsHaveTheVariationAsked) {
  const WorkloadSpec spec = Good(
      "arrivals: {gamma: {cv: 2}}\nrate: 120 req/min\nrequests: 50000\n"
      "lengths: {prompt: 512 tokens, output: 8 tokens}\n");
  EXPECT_EQ(spec.rate, 2);
  const auto requests = All(*spec.Make(3));
  double sum = 0, squares = 0, last = 0;
  for (const SimRequest& r : requests) {
    const double at = static_cast<double>(r.arrival.ns) * 1e-9;
    sum += at - last;
    squares += (at - last) * (at - last);
    last = at;
  }
  const double mean = sum / 50000;
  EXPECT_NEAR(mean, 0.5, 0.02);
  EXPECT_NEAR(std::sqrt(squares / 50000 - mean * mean) / mean, 2, 0.08);
}

TEST(WorkloadFile, ADurationEndsTheArrivals) {
  const WorkloadSpec spec = Good(
      "arrivals: steady\nrate: 4 req/s\nduration: 10 s\n"
      "lengths: {prompt: 1 tokens, output: 1 tokens}\n");
  EXPECT_EQ(All(*spec.Make(1)).size(), 40u);
  EXPECT_EQ(spec.ExpectedRequests(), 40u);
}

TEST(WorkloadFile, ReplaysTracesAtTheirRateOrAnother) {
  EXPECT_EQ(All(*Good("trace: t.csv\n").Make(1)).back().arrival.ns, 4'000'000'000);
  const auto faster = All(*Good("trace: t.csv\nrate: 2 req/s\n").Make(1));
  ASSERT_EQ(faster.size(), 3u);
  EXPECT_EQ(faster.back().arrival.ns, 1'000'000'000);
  EXPECT_EQ(faster.back().prompt_tokens, 300);
  EXPECT_EQ(All(*Good("trace: t.csv\nrequests: 2\n").Make(1)).size(), 2u);
  EXPECT_EQ(All(*Good("trace: t.csv\nduration: 3 s\n").Make(1)).size(), 2u);
  EXPECT_EQ(Good("trace: t.csv\n").MeanRate(), 0.5);
  const auto in_turn = All(*Good("arrivals: at-once\nrequests: 4\n"
                                 "lengths: {trace: t.csv, order: in-turn}\n")
                                .Make(9));
  ASSERT_EQ(in_turn.size(), 4u);
  EXPECT_EQ(in_turn[3].prompt_tokens, 100);
  EXPECT_EQ(in_turn[3].arrival.ns, 0);
}

TEST(WorkloadFile, LimitsArePerRequest) {
  const auto limits = Good("trace: t.csv\nslo: {ttft: 1 s, tpot: 20 ms}\n").limits;
  EXPECT_EQ(limits.ttft_s, 1);
  EXPECT_EQ(limits.tpot_s, 0.02);
  EXPECT_EQ(limits.share(), 0.9);
  LatencyReport report;
  report.requests = 100;
  report.met_both = 90;
  EXPECT_TRUE(report.Keeps(limits));
  report.refused = 1;  // a refused request misses every limit
  EXPECT_FALSE(report.Keeps(limits));
  EXPECT_EQ(Error("trace: t.csv\nslo: {ttft: {p99: 1 s}}\n"),
            "w.yaml:2:13: ttft must be one time per request, such as 250 ms; give the share of "
            "requests as attainment, such as 99 %");
}

TEST(WorkloadFile, ErrorsNameThePlace) {
  const std::string lengths = "lengths: {prompt: 1 tokens, output: 1 tokens}\n";
  EXPECT_EQ(Error("arrivals: poison\n" + lengths),
            "w.yaml:1:11: arrivals must be poisson, steady, at-once or {gamma: {cv: 2}}, got "
            "'poison'; did you mean poisson?");
  EXPECT_EQ(Error("arrivals: poisson\nrate: 5\n" + lengths),
            "w.yaml:2:7: rate must have a unit (req/s, req/min, req/h), such as 5 req/s, got '5'");
  EXPECT_EQ(Error("arrivals: poisson\nrate: -5 req/s\n" + lengths),
            "w.yaml:2:7: rate must be in [1e-6 req/s, 1e6 req/s], got '-5 req/s'");
  EXPECT_EQ(Error("arrivals: poisson\nrate: 5 req/s\n" + lengths),
            "w.yaml:1:1: give the number of requests, or a duration such as 600 s");
  EXPECT_EQ(Error("arrivals: poisson\nrate: 1e6 req/s\nduration: 1 h\n" + lengths),
            "w.yaml:1:1: 3.6e+09 requests in 3600 s; at most 100000000 requests and 1e+09 s are "
            "simulated");
  EXPECT_EQ(Error("arrivals: {gamma: {cv: 0}}\n"),
            "w.yaml:1:24: cv must be a number in [0.03, 30], got '0'");
  EXPECT_EQ(Error("arrivals: poisson\nlengths: {prompt: 1.5 tokens, output: 1 tokens}\n"),
            "w.yaml:2:19: prompt must be a whole number of tokens, at least 1, got '1.5'");
  EXPECT_EQ(
      Error("arrivals: poisson\nlengths: {prompt: {uniform: {min: 9 tokens, max: 3 tokens}}}"),
      "w.yaml:2:50: max (3) must be at least min (9)");
  EXPECT_EQ(Error("trace: t.csv\narrivals: poisson\n"),
            "w.yaml:2:11: a trace has its own arrivals; leave out arrivals or trace");
  EXPECT_EQ(Error("trace: none.csv\n"), "w.yaml:1:8: none.csv: no such file");
  EXPECT_EQ(Error("trace: back.csv\n"),
            "w.yaml:1:8: back.csv: line 5: arrives 1 s before the request above it; sort the trace "
            "by time");
  EXPECT_EQ(Error("trace: empty.csv\n"), "w.yaml:1:8: empty.csv: line 1: holds no request");
  EXPECT_EQ(Error("trace: t.csv\nslo: {}\n"),
            "w.yaml:2:6: slo must limit ttft or tpot, such as {ttft: 250 ms}");
  EXPECT_EQ(Error("trace: t.csv\nslo: {ttft: 3 mss}\n"),
            "w.yaml:2:13: ttft has the unknown unit 'mss'; known: us, ms, s, min, h; did you mean "
            "ms?");
  EXPECT_EQ(Error("trase: t.csv\n"),
            "w.yaml:1:1: unknown key 'trase' in a workload; did you mean trace?");
  EXPECT_FALSE(Parse("").ok());
  EXPECT_FALSE(Parse("[1, 2]").ok());
}

constexpr char kRest[] =
    "requests: 1000\n"
    "lengths: {prompt: 5 tokens, output: 5 tokens}\n";

TEST(WorkloadFile, PromptsShareWhatTheTraceNames) {
  EXPECT_FALSE(Good("trace: t.csv\n").SharesPrefixes());
  const WorkloadSpec csv = Good("trace: shared.csv\n");
  EXPECT_TRUE(csv.SharesPrefixes());
  const auto workload = csv.Make(1);
  const std::vector<SimRequest> requests = All(*workload);
  ASSERT_EQ(requests.size(), 2u);
  ASSERT_NE(requests[0].prefix, nullptr);
  EXPECT_EQ(requests[0].prefix->ids, std::vector<int64_t>{4});
  EXPECT_EQ(requests[0].prefix->tokens_per_id, 60);
  EXPECT_EQ(requests[1].prefix, nullptr);
  const WorkloadSpec hashes = Good("trace: hashes.jsonl\n");
  EXPECT_TRUE(hashes.SharesPrefixes());
  const auto replay = hashes.Make(1);
  const SimRequest first = *replay->Next();
  EXPECT_EQ(first.prefix->ids, (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(first.prefix->tokens_per_id, 512);
}

TEST(WorkloadFile, SyntheticPromptsDrawAPrefix) {
  const WorkloadSpec spec =
      Good(std::string(kSynthetic) + "prefixes: {count: 5, length: 300 tokens}\n");
  EXPECT_TRUE(spec.SharesPrefixes());
  EXPECT_TRUE(spec.Describe().ends_with(", 5 shared prefixes of 300 tokens")) << spec.Describe();
  const auto workload = spec.Make(1), without = Good(kSynthetic).Make(1);
  std::vector<int> drawn(5);
  while (const auto request = workload->Next()) {
    EXPECT_EQ(request->prefix->tokens_per_id, 300);
    ++drawn[static_cast<size_t>(request->prefix->ids.at(0))];
    const auto same = without->Next();
    ASSERT_EQ(request->arrival, same->arrival) << "the draws change nothing else";
    ASSERT_EQ(request->prompt_tokens, same->prompt_tokens);
  }
  for (int count : drawn) EXPECT_NEAR(count, 4000, 250);
}

TEST(WorkloadFile, WrongPrefixesAreOneLine) {
  EXPECT_EQ(Error("trace: long.csv\n"),
            "w.yaml:1:8: long.csv: line 2: prefix_tokens must be in [1, 90], the prompt's length, "
            "got 91");
  EXPECT_EQ(Error("trace: half.csv\n"),
            "w.yaml:1:8: half.csv: line 2: prefix_tokens must be an integer in [0, 4194304], got "
            "''");
  EXPECT_EQ(Error("trace: named.csv\n"),
            "w.yaml:1:8: named.csv: line 2: prefix_id must be an integer, or empty, got 'system'");
  EXPECT_EQ(Error("trace: one.csv\n"),
            "w.yaml:1:8: one.csv: line 1: the columns prefix_id and prefix_tokens need each other");
  EXPECT_EQ(Error("trace: hashes-many.jsonl\n"),
            "w.yaml:1:8: hashes-many.jsonl: line 2: 'hash_ids' has 3 ids, but a prompt of 1024 "
            "tokens has 2 blocks of 512 tokens");
  EXPECT_EQ(Error("trace: hashes-text.jsonl\n"),
            "w.yaml:1:8: hashes-text.jsonl: line 1: 'hash_ids' must hold integers");
  EXPECT_EQ(Error("trace: t.csv\nprefixes: {count: 1, length: 5 tokens}\n"),
            "w.yaml:2:11: a trace has its own prefixes; leave out prefixes or trace");
  const std::string synthetic = "arrivals: at-once\n" + std::string(kRest);
  EXPECT_EQ(Error(synthetic + "prefixes: {count: 0, length: 5 tokens}\n"),
            "w.yaml:4:19: count must be an integer in [1, 1000000], got '0'");
  EXPECT_EQ(Error(synthetic + "prefixes: {count: 1}\n"),
            "w.yaml:4:11: 'length' is missing in prefixes");
}

TEST(WorkloadFile, RatesChange) {
  const std::string rest = kRest;
  const WorkloadSpec file =
      Good("arrivals: steady\nrates: {every: 1 min, file: rates.csv}\n" + rest);
  EXPECT_EQ(file.rate, 2);
  EXPECT_EQ(file.shape.shares, (std::vector<double>{0.5, 1, 1.5}));
  const auto requests = All(*file.Make(1));
  const auto in_first = std::ranges::count_if(
      requests, [](const SimRequest& r) { return r.arrival <= Time{} + Duration::Seconds(60); });
  EXPECT_EQ(in_first, 60);
  const WorkloadSpec values = Good(
      "arrivals: poisson\nrate: 10 req/s\nrates: {every: 1 h, values: [60 req/min, 3 req/s]}\n" +
      rest);
  EXPECT_EQ(values.MeanRate(), 10) << "the rate that is given is the mean";
  EXPECT_EQ(values.shape.shares, (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(values.Describe(),
            "1,000 requests, Poisson, 10 req/s on average over 2 rates of 1h00m each, prompt 5 "
            "tokens, output 5 tokens");
}

TEST(WorkloadFile, WrongRatesAreOneLine) {
  const auto error = [](const std::string& rates) {
    return Error("arrivals: poisson\nrates: " + rates + "\n" + kRest);
  };
  EXPECT_EQ(error("{every: 1 min}"),
            "w.yaml:2:8: rates come from values or from a file; give one of them");
  EXPECT_EQ(error("{every: 1 min, file: words.csv}"),
            "w.yaml:2:29: words.csv: number 2: must be requests per second, got 'two'");
  EXPECT_EQ(error("{every: 1 min, values: [0 req/s]}"),
            "w.yaml:2:31: a rate must be in [1e-6 req/s, 1e6 req/s], got '0 req/s'");
  EXPECT_EQ(
      error("{every: 1 min, values: [5]}"),
      "w.yaml:2:31: a rate must have a unit (req/s, req/min, req/h), such as 5 req/s, got '5'");
  EXPECT_EQ(error("{every: 1 min, values: []}"),
            "w.yaml:2:31: 1 to 100000 rates are possible, got 0");
  EXPECT_EQ(error("{values: [5 req/s]}"), "w.yaml:2:8: 'every' is missing in rates");
  EXPECT_EQ(
      Error("arrivals: at-once\nrates: {every: 1 s, values: [5 req/s]}\n" + std::string(kRest)),
      "w.yaml:2:8: requests that come all at once have no rates");
}

TEST(WorkloadFile, PhasesFollowOneAnother) {
  const WorkloadSpec spec = Good(
      "arrivals: poisson\n"
      "rate: 2 req/s\n"
      "lengths: {prompt: 100 tokens, output: 20 tokens}\n"
      "phases:\n"
      "  - {duration: 10 min}\n"
      "  - {duration: 5 min, rate: 8 req/s, lengths: {prompt: 300 tokens, output: 20 tokens}}\n"
      "  - {duration: 5 min, arrivals: steady}\n"
      "slo: {ttft: 1 s}\n");
  EXPECT_DOUBLE_EQ(*spec.rate, (2 * 600 + 8 * 300 + 2 * 300) / 1200.0);
  EXPECT_EQ(spec.ExpectedRequests(), 4200u);
  EXPECT_EQ(spec.Describe(), "4,200 requests in 3 phases of 20m00s in all, 3.5 req/s on average");
  const auto requests = All(*spec.Make(1));
  const auto in = [&](double from_s, double to_s) {
    return std::ranges::count_if(requests, [&](const SimRequest& r) {
      const double at_s = (r.arrival - Time{}).seconds();
      return at_s >= from_s && at_s < to_s;
    });
  };
  EXPECT_NEAR(static_cast<double>(in(0, 600)), 1200, 150);
  EXPECT_NEAR(static_cast<double>(in(600, 900)), 2400, 200);
  EXPECT_NEAR(static_cast<double>(in(900, 1200)), 600, 2);
  EXPECT_TRUE(std::ranges::is_sorted(requests, {}, &SimRequest::arrival));
  for (const SimRequest& r : requests) {
    const double at_s = (r.arrival - Time{}).seconds();
    EXPECT_EQ(r.prompt_tokens, at_s > 600 && at_s <= 900 ? 300 : 100);
  }
  // Another mean rate makes all phases faster, and takes as long.
  const auto faster = All(*spec.Make(1, 7));
  EXPECT_NEAR(static_cast<double>(faster.size()), 8400, 400);
  EXPECT_LE(faster.back().arrival, Time{} + Duration::Seconds(1200));
  // As one: all lengths at the mean rate.
  const WorkloadSpec mixed = spec.Mixed();
  EXPECT_TRUE(mixed.phases.empty());
  EXPECT_TRUE(mixed.Validate().ok());
  EXPECT_EQ(mixed.rate, spec.rate);
  const auto drawn = All(*mixed.Make(1));
  const auto longer = std::ranges::count(drawn, 300, &SimRequest::prompt_tokens);
  EXPECT_NEAR(static_cast<double>(longer) / static_cast<double>(drawn.size()), 2400 / 4200.0, 0.05);
}

TEST(WorkloadFile, ClientsAtTheSameTime) {
  const WorkloadSpec spec = Good(
      "arrivals: steady\n"
      "duration: 100 s\n"
      "lengths: {prompt: 10 tokens, output: 5 tokens}\n"
      "clients:\n"
      "  - {name: batch, rate: 10 req/s}\n"
      "  - {name: chat, rate: 1 req/s, lengths: {prompt: 20 tokens, output: 7 tokens}}\n");
  ASSERT_EQ(spec.clients.size(), 2u);
  EXPECT_EQ(spec.clients[1].name, "chat");
  EXPECT_EQ(spec.rate, 11);
  EXPECT_EQ(spec.Describe(), "1,100 requests of 2 clients, 11 req/s in all");
  const auto workload = spec.Make(1);
  const std::vector<SimRequest> all = All(*workload);
  EXPECT_NEAR(static_cast<double>(all.size()), 1100, 2);
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, &SimRequest::arrival));
  EXPECT_NEAR(static_cast<double>(std::ranges::count(all, 1, &SimRequest::client)), 100, 1);
  for (const SimRequest& r : all) EXPECT_EQ(r.prompt_tokens, r.client == 1 ? 20 : 10);
  const auto twice = spec.Make(1, 22);
  EXPECT_NEAR(static_cast<double>(All(*twice).size()), 2200, 4);
  EXPECT_EQ(spec.Mixed().lengths.size(), all.size());
}

TEST(WorkloadFile, ClientsThatDoNotWork) {
  const std::string head = "duration: 5 s\nlengths: {prompt: 1 tokens, output: 1 tokens}\n";
  EXPECT_EQ(Error(head + "clients: [{rate: 1 req/s}]\n"),
            "w.yaml:3:11: 'name' is missing in a client");
  EXPECT_EQ(Error(head + "clients: [{name: a}]\n"), "w.yaml:3:11: 'rate' is missing in a client");
  EXPECT_EQ(Error(head + "clients: []\n"),
            "w.yaml:3:10: clients must be a list of at least one client");
  EXPECT_EQ(Error(head + "rates: {every: 1 h, values: [1 req/s]}\nclients: []\n"),
            "w.yaml:3:8: clients do not go with rates; leave it out");
}

TEST(WorkloadFile, PhasesThatDoNotWork) {
  const std::string head = "lengths: {prompt: 1 tokens, output: 1 tokens}\n";
  EXPECT_EQ(Error(head + "phases: [{duration: 5 s}]\n"),
            "w.yaml:2:10: 'rate' is missing in a phase");
  EXPECT_EQ(Error("rate: 1 req/s\nphases: [{duration: 5 s}]\n"),
            "w.yaml:2:10: 'lengths' is missing in a phase");
  EXPECT_EQ(Error(head + "rate: 1 req/s\nphases: [{rate: 1 req/s}]\n"),
            "w.yaml:3:10: 'duration' is missing in a phase");
  EXPECT_EQ(Error(head + "phases: [{duration: 5 s, rate: 1 req/s, arrivals: at-once}]\n"),
            "w.yaml:2:51: the requests of a phase or client cannot come all at once");
  EXPECT_EQ(Error(head + "rates: {every: 1 h, values: [1 req/s]}\nphases: []\n"),
            "w.yaml:2:8: phases do not go with rates; leave it out");
  EXPECT_EQ(Error(head + "phases: []\n"),
            "w.yaml:2:9: phases must be a list of at least one phase");
}

}  // namespace
}  // namespace millrace::sim
