// A toy cluster for tests of the autopilot. Header-only; one thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "cluster/autopilot/autopilot.h"

namespace millrace::cluster {

inline constexpr double kTick_s = 0.1, kSearch_s = 5, kLoad_s = 3;

// What a plan can do: requests per second, by the mean prompt.
using Capacity = std::function<double(double prompt_tokens)>;

// A plan that is nothing but a name, and the workers that get layers; none: they are not known.
inline std::shared_ptr<const WorkerPlan> ToyPlan(const std::string& name,
                                                 std::vector<std::string> workers = {}) {
  WorkerPlan plan{.plan = {.model = name}, .workers = std::move(workers)};
  for (NodeIndex node = 0; node < std::ssize(plan.workers); ++node) {
    plan.plan.stages.push_back({.nodes = {node}});
  }
  return std::make_shared<const WorkerPlan>(std::move(plan));
}

// A toy cluster: each plan has a capacity, and when more is asked, the share beyond it gets bad
// answers. Searches and changes take their time. Requests arrive evenly.
class World {
 public:
  explicit World(AutopilotOptions options = {}) : pilot_(Acting(options)), options_(options) {
    view_.members = {{"a"}, {"b"}, {"c"}, {"d"}};
    view_.epoch = 1;
    Put("even", [](double) { return 4.0; });
    InForce("even");
  }

  void Put(const std::string& plan, Capacity capacity, double forecast_factor = 1) {
    capacity_[plan] = std::move(capacity);
    forecast_factor_[plan] = forecast_factor;
  }
  // The plan gives layers to these workers alone. Without it nothing is known of that.
  void Need(const std::string& plan, std::vector<std::string> workers) {
    workers_[plan] = std::move(workers);
  }
  void Use(double requests_per_s, int prompt_tokens) {
    rate_ = requests_per_s;
    prompt_ = prompt_tokens;
  }
  void Run(double seconds) {
    for (const double end = now_s_ + seconds; now_s_ < end - 1e-9; now_s_ += kTick_s) Tick();
  }
  // Seconds until the plan in force is `plan`, or `limit_s`.
  double RunUntil(const std::string& plan, double limit_s) {
    const double begin = now_s_;
    while (view_.shape != plan && now_s_ - begin < limit_s) Run(kTick_s);
    return now_s_ - begin;
  }
  void Lose(const std::string& name) { std::erase(view_.members, AutopilotView::Member{name}); }
  void Give(const std::string& name) { view_.members.push_back({name}); }
  AutopilotView& view() { return view_; }
  Autopilot& pilot() { return pilot_; }
  const Decision& last() const { return pilot_.decisions().back(); }
  int changes() const { return changes_; }
  int searches() const { return searches_; }
  // An operator applies a plan, which is in force at once.
  void Interfere(const std::string& plan) {
    applying_.reset();
    view_.changing = false;
    view_.epoch = ++epoch_;
    InForce(plan);
  }
  bool search_fails = false, plans_are_given_up = false;
  double loads_for_s = kLoad_s;

 private:
  static AutopilotOptions Acting(AutopilotOptions& options) {
    if (!options.limits.any()) options.limits = {.ttft_s = 1};
    return options;
  }
  static Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }
  Time now() const { return At(now_s_); }

  void InForce(const std::string& plan) {
    view_.shape = plan;
    view_.plan = ToyPlan(plan);
  }
  void Tick() {
    due_ += rate_ * kTick_s;
    for (; due_ >= 1; due_ -= 1) Arrive();
    while (!ending_.empty() && std::get<0>(ending_.top()) <= now_s_) {
      const auto [at, arrived_s, id] = ending_.top();
      ending_.pop();
      RequestOutput output;
      output.request = RequestId(id);
      output.tokens.push_back(1);
      output.finish = FinishReason::kLength;
      output.times =
          RequestTimes{.arrived = At(arrived_s), .first_token = now(), .last_token = now()};
      pilot_.Heard(output, now());
    }
    if (search_ && now_s_ >= search_->second) EndSearch();
    if (applying_ && now_s_ >= applying_->second) EndChange();
    view_.unix_s = 1e9 + now_s_;
    if (std::lround(now_s_ / kTick_s) % 10 == 0) pilot_.Observe(view_, now());
    Act();
  }
  void Arrive() {
    pilot_.Arrived(RequestId(++requests_), prompt_, now());
    const double can = capacity_.at(view_.shape)(prompt_);
    credit_ += std::min(1.0, can / rate_);
    const bool good = credit_ >= 1;
    if (good) credit_ -= 1;
    ending_.emplace(now_s_ + (good ? 0.5 : 2), now_s_, requests_);
  }
  void EndSearch() {
    const StartSearch search = std::exchange(search_, std::nullopt)->first;
    SearchAnswer answer;
    answer.seconds = kSearch_s;
    if (search_fails) {
      answer.status = ResourceExhausted("the model does not fit");
    } else {
      for (const auto& [plan, capacity] : capacity_) {
        PlanForecast forecast{
            .shape = plan, .plan = ToyPlan(plan, workers_[plan]), .method = "toy"};
        forecast.requests_per_s = capacity(search.load.prompt_tokens) * forecast_factor_[plan];
        if (plan == view_.shape) answer.current = forecast;
        answer.found.push_back(forecast);
      }
      std::ranges::stable_sort(answer.found, [](const auto& a, const auto& b) {
        return a.requests_per_s > b.requests_per_s;
      });
    }
    pilot_.SearchEnded(search.id, std::move(answer), now());
  }
  void EndChange() {
    const std::string plan = std::exchange(applying_, std::nullopt)->first;
    view_.changing = false;
    if (plans_are_given_up) {
      view_.given_up = epoch_;
      view_.given_up_reason = "no memory";
      return;
    }
    view_.epoch = epoch_;
    InForce(plan);
    ++changes_;
  }
  void Act() {
    std::vector<AutopilotAction> actions;
    pilot_.TakeActions(actions);
    for (AutopilotAction& action : actions) {
      if (const auto* search = std::get_if<StartSearch>(&action)) {
        ASSERT_FALSE(search_) << "one search at a time";
        search_ = {*search, now_s_ + kSearch_s};
        ++searches_;
      } else if (const auto* apply = std::get_if<ApplyPlan>(&action)) {
        ASSERT_EQ(options_.mode, AutopilotMode::kAct);
        applying_ = {apply->plan->plan.model,
                     now_s_ + loads_for_s};  // replaces one that is being loaded
        view_.changing = true;
        pilot_.ApplyEnded(++epoch_);
      }
    }
  }

  Autopilot pilot_;
  AutopilotOptions options_;
  AutopilotView view_;
  std::map<std::string, Capacity> capacity_;
  std::map<std::string, double> forecast_factor_;
  std::map<std::string, std::vector<std::string>> workers_;
  double now_s_ = 0, rate_ = 0, due_ = 0, credit_ = 0;
  int prompt_ = 100;
  uint64_t requests_ = 0;
  using Ending = std::tuple<double, double, uint64_t>;  // end, arrival, request
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> ending_;
  std::optional<std::pair<StartSearch, double>> search_;
  std::optional<std::pair<std::string, double>> applying_;
  int64_t epoch_ = 1;
  int changes_ = 0, searches_ = 0;
};

inline AutopilotOptions Act() { return {.mode = AutopilotMode::kAct}; }

// Good for short prompts.
inline double ForShort(double prompt) { return prompt < 200 ? 10 : 2; }

}  // namespace millrace::cluster
