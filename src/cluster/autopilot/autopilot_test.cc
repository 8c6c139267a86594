#include "cluster/autopilot/autopilot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "base/rng.h"

namespace millrace::cluster {
namespace {

constexpr double kTick_s = 0.1, kSearch_s = 5, kLoad_s = 3;

// What a plan can do: requests per second, by the mean prompt.
using Capacity = std::function<double(double prompt_tokens)>;

// A toy cluster: each plan has a capacity, and when more is asked, the share beyond it gets bad
// answers. Searches and changes take their time. Requests arrive evenly.
class World {
 public:
  explicit World(AutopilotOptions options = {}) : pilot_(Acting(options)), options_(options) {
    view_.members = {{"a"}, {"b"}, {"c"}, {"d"}};
    view_.epoch = 1;
    Put("even", [](double) { return 4.0; });
    view_.shape = view_.plan_text = "even";
  }

  void Put(const std::string& plan, Capacity capacity, double forecast_factor = 1) {
    capacity_[plan] = std::move(capacity);
    forecast_factor_[plan] = forecast_factor;
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
    view_.shape = view_.plan_text = plan;
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
        PlanForecast forecast{.shape = plan, .text = plan, .method = "toy"};
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
    view_.shape = view_.plan_text = plan;
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
      } else if (const auto* apply = std::get_if<ApplyPlanText>(&action)) {
        ASSERT_EQ(options_.mode, AutopilotMode::kAct);
        applying_ = {apply->text, now_s_ + loads_for_s};  // replaces one that is being loaded
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

AutopilotOptions Act() { return {.mode = AutopilotMode::kAct}; }

// Good for short prompts, or for long ones.
double ForShort(double prompt) { return prompt < 200 ? 10 : 2; }
double ForLong(double prompt) { return prompt < 200 ? 5 : 8; }

TEST(Autopilot, StaysWhileThePlanInForceCarriesTheLoad) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(3, 100);
  world.Run(300);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.searches(), 1) << "when the load was known";
  EXPECT_EQ(world.last().kind, DecisionKind::kKeep);
  EXPECT_EQ(world.last().cause, DecisionCause::kStart);
  EXPECT_EQ(world.last().reason, "the plan in force carries 3.6 requests/s, 1.2 times the load");
}

// DistServe section 4.3: a shift of the workload makes the planner run again.
TEST(Autopilot, ALastingShiftOfLoadIsActedUponWithinAMinute) {
  World world(Act());
  world.Put("short", ForShort);
  world.Put("long", ForLong);
  world.Use(6, 100);
  EXPECT_LT(world.RunUntil("short", 60), 60);
  world.Run(200);
  EXPECT_EQ(world.last().outcome.substr(0, 9), "verified:") << world.last().outcome;
  world.Use(6, 300);
  EXPECT_LT(world.RunUntil("long", 60), 60);
  EXPECT_EQ(world.last().cause, DecisionCause::kLoadShifted);
  EXPECT_GT(world.last().load.prompt_tokens, 290) << "not a mean of before and after";
  EXPECT_NE(world.last().why.find("mean input went from 100 to "), std::string::npos)
      << world.last().why;
  world.Run(100);
  EXPECT_EQ(world.changes(), 2);
  EXPECT_EQ(world.last().after->attainment(), 1);
}

// In a long period each level is a shift that lasts, and the first of them are followed.
TEST(Autopilot, AnOscillatingLoadCausesNoMoreThanOneChangePerPeriod) {
  for (const double period_s : {30.0, 60.0, 100.0, 150.0, 240.0, 400.0, 900.0}) {
    World world(Act());
    world.Put("short", ForShort);
    world.Put("long", ForLong);
    world.Use(6, 100);
    world.Run(200);
    const int before = world.changes();
    constexpr int kPeriods = 8;
    for (int i = 0; i < kPeriods; ++i) {
      world.Use(6, 300);
      world.Run(period_s / 2);
      world.Use(6, 100);
      world.Run(period_s / 2);
      if (period_s > 240) continue;
      EXPECT_LE(world.changes() - before, i + 1) << period_s << " s, period " << i;
    }
    EXPECT_LE(world.changes() - before, kPeriods) << period_s;
    // A load that stays is followed in the end.
    world.Use(6, 300);
    world.Run(AutopilotOptions().dwell_max.seconds() + 120);
    EXPECT_EQ(world.view().shape, "long") << period_s;
  }
}

TEST(Autopilot, AdviceIsGivenAndNotCarriedOut) {
  World world;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(120);
  EXPECT_EQ(world.changes(), 0);
  ASSERT_NE(world.pilot().advice(), nullptr);
  EXPECT_EQ(world.pilot().advice()->candidates.front().shape, "short");
  EXPECT_EQ(world.pilot().advice()->reason,
            "short answers 3.2 requests/s more; over 600 s that is 1920 requests, and the change "
            "delays 12");
  world.view().epoch = 2;  // an operator has followed it
  world.view().shape = "short";
  world.Run(10);
  EXPECT_EQ(world.pilot().advice(), nullptr);
}

// Helix section 5: the plan is made again when machines change.
TEST(Autopilot, ALossIsUrgentAndWorkersThatGoTogetherCauseOneSearch) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.RunUntil("short", 100);
  world.Run(5);
  const int searches = world.searches();
  world.Put("small", [](double) { return 9.0; });
  world.Put("short", [](double) { return 3.0; });
  world.Lose("d");
  world.Run(1);
  world.Lose("c");
  EXPECT_LT(world.RunUntil("small", 60), 15) << "it does not wait for the dwell";
  EXPECT_EQ(world.searches(), searches + 1);
  EXPECT_EQ(world.last().cause, DecisionCause::kWorkersChanged);
  EXPECT_EQ(world.last().workers, 2);
  world.Run(60);
  world.Put("short", ForShort);
  world.Give("c");
  world.Run(30);
  EXPECT_EQ(world.last().why, "the cluster gained c");
}

// SpotServe section 3.2: a notice is answered before the machine is gone.
TEST(Autopilot, ANoticeIsAnsweredBeforeTheWorkerIsGone) {
  World world(Act());
  world.Put("small", [](double) { return 9.0; });
  world.Use(6, 100);
  world.Run(100);
  world.Put("rest", [](double) { return 8.0; });
  world.Put("small", [](double) { return 2.0; });  // without b
  world.view().members[1].leaving = true;
  EXPECT_LT(world.RunUntil("rest", 30), 15);
  EXPECT_EQ(world.last().cause, DecisionCause::kNotice);
  EXPECT_EQ(world.last().why, "the cluster must give up b");
}

TEST(Autopilot, AClusterThatServesNothingTakesWhatIsFound) {
  World world(Act());
  world.Put("some", [](double) { return 1.0; });
  world.view().serving = false;
  world.view().shape = "even";
  world.Run(1);
  EXPECT_LT(world.RunUntil("even", 1), 1);
  world.Put("even", [](double) { return 0.5; });
  EXPECT_LT(world.RunUntil("some", 30), 30) << "without a request, and without a known load";
}

TEST(Autopilot, APlanThatDoesWorseThanBeforeIsTakenBack) {
  World world(Act());
  world.Put("even", [](double) { return 5.0; });
  world.Put(
      "liar", [](double) { return 1.0; }, 20);
  world.Use(5.5, 100);
  EXPECT_LT(world.RunUntil("liar", 60), 60);
  EXPECT_LT(world.RunUntil("even", 60), 60);
  EXPECT_EQ(world.last().kind, DecisionKind::kRollBack);
  EXPECT_EQ(world.last().reason, "back to even");
  world.Run(600);
  EXPECT_EQ(world.changes(), 2) << "it is not tried again";
  EXPECT_EQ(world.view().shape, "even");
  world.Give("e");  // other workers: what was measured says nothing
  EXPECT_LT(world.RunUntil("liar", 600), 600);
}

TEST(Autopilot, AForecastThatIsMissedByABetterPlanStays) {
  World world(Act());
  world.Put("even", [](double) { return 1.0; });
  world.Put(
      "better", [](double) { return 3.0; }, 10);
  world.Use(6, 100);
  EXPECT_LT(world.RunUntil("better", 60), 60);
  world.Run(110);
  EXPECT_EQ(world.changes(), 1);
  bool missed = false;
  for (const Decision& decision : world.pilot().decisions()) {
    missed |= decision.outcome.starts_with("forecast missed: ");
  }
  EXPECT_TRUE(missed);
  EXPECT_EQ(world.last().kind, DecisionKind::kKeep);
}

TEST(Autopilot, AFailedSearchChangesNothingAndSaysSo) {
  World world(Act());
  world.search_fails = true;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(200);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.last().reason, "no plan was found: the model does not fit");
  EXPECT_EQ(world.pilot().decisions().size(), 1u) << "it is said once";
  world.view().serving = false;
  const int searches = world.searches();
  world.Run(100);
  EXPECT_GE(world.searches() - searches, 2) << "it goes on trying";
  EXPECT_LE(world.searches() - searches, 4);
  EXPECT_EQ(world.pilot().decisions().size(), 1u);
}

TEST(Autopilot, APlanThatIsGivenUpIsNotTriedAgainOnTheseWorkers) {
  World world(Act());
  world.plans_are_given_up = true;
  world.Put("short", ForShort);
  world.Use(6, 100);
  world.Run(300);
  int changes = 0;
  for (const Decision& decision : world.pilot().decisions()) {
    if (decision.kind != DecisionKind::kChange) continue;
    ++changes;
    EXPECT_EQ(decision.outcome, "given up: no memory");
  }
  EXPECT_EQ(changes, 1);
}

TEST(Autopilot, AnAnswerForWorkersThatAreGoneIsNotUsed) {
  World world(Act());
  world.Put("short", ForShort);
  world.Use(6, 100);
  while (world.pilot().state() != "searching") world.Run(0.1);
  world.Lose("d");
  world.Put("short", [](double) { return 1.0; });
  world.Put("small", [](double) { return 9.0; });
  EXPECT_LT(world.RunUntil("small", 30), 30);
  EXPECT_EQ(world.changes(), 1) << "the plan for four workers was never ordered";
  EXPECT_EQ(world.searches(), 2);
}

TEST(Autopilot, AnOperatorsPlanEndsAChangeAndIsNotTakenBack) {
  for (const bool verifying : {false, true}) {
    World world(Act());
    world.Put("short", ForShort);
    world.Put("operator's", [](double) { return 1.0; });  // worse than what it replaces
    world.Use(6, 100);
    while (world.pilot().state() != (verifying ? "verifying" : "changing")) world.Run(0.1);
    world.Interfere("operator's");
    world.Run(1.1);
    EXPECT_NE(world.pilot().decisions().front().outcome.find("another plan"), std::string::npos)
        << world.pilot().decisions().front().outcome;
    for (const Decision& decision : world.pilot().decisions()) {
      EXPECT_NE(decision.kind, DecisionKind::kRollBack);
    }
    EXPECT_LT(world.RunUntil("short", 200), 200) << "it was not at fault, so it may come again";
  }
}

// A change that waits for a worker that has gone.
TEST(Autopilot, ALossOvertakesAChangeThatIsBeingLoaded) {
  World world(Act());
  world.loads_for_s = 1000;
  world.Put("short", ForShort);
  world.Use(6, 100);
  while (world.pilot().state() != "changing") world.Run(0.1);
  world.Run(5);
  world.Lose("d");
  world.Put("short", [](double) { return 1.0; });
  world.Put("small", [](double) { return 9.0; });
  world.loads_for_s = kLoad_s;
  EXPECT_LT(world.RunUntil("small", 30), 30);
  EXPECT_EQ(world.pilot().decisions().front().outcome, "overtaken: the cluster lost d");
}

TEST(Autopilot, MissedLimitsCauseASearchNotMoreOftenThanTheDwell) {
  World world(Act());
  world.Use(6, 100);  // beyond the only plan's capacity
  world.Run(600);
  EXPECT_EQ(world.changes(), 0);
  EXPECT_EQ(world.last().cause, DecisionCause::kLimitsMissed);
  EXPECT_LE(world.searches(), 11);
  EXPECT_GE(world.searches(), 8);
}

TEST(Autopilot, RemembersTheDecisionsOfEarlierControllers) {
  Decision open{.id = 7, .kind = DecisionKind::kChange};
  Autopilot pilot({}, {open});
  EXPECT_EQ(pilot.decisions().front().outcome, "the controller restarted");
  World world(Act());
  std::vector<Decision> many(AutopilotOptions::kDecisionsMax + 5);
  EXPECT_EQ(Autopilot({}, many).decisions().size(), AutopilotOptions::kDecisionsMax);
}

// Whatever happens: one search and one change at a time (checked by World), the record is bounded,
// and a state is left in the end.
TEST(Autopilot, RandomWorlds) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    World world(Act());
    std::vector<std::string> lost;
    for (int i = 0; i < 60; ++i) {
      switch (rng.Between(0, 6)) {
        case 0: world.Use(rng.Between(0, 12), static_cast<int>(rng.Between(10, 1000))); break;
        case 1:
          if (world.view().members.size() > 1) {
            lost.push_back(world.view().members.front().name);
            world.Lose(lost.back());
          }
          break;
        case 2:
          if (!lost.empty()) world.Give(lost.back()), lost.pop_back();
          break;
        case 3: {
          const double can = rng.Between(1, 12);
          world.Put(
              "p" + std::to_string(rng.Between(0, 3)), [can](double) { return can; },
              rng.Between(1, 30) / 3.0);
          break;
        }
        case 4: world.search_fails = rng.Between(0, 3) == 0; break;
        case 5: world.plans_are_given_up = rng.Between(0, 3) == 0; break;
        case 6: world.view().serving = rng.Between(0, 5) != 0; break;
      }
      world.Run(static_cast<double>(rng.Between(1, 20)));
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_LE(world.pilot().decisions().size(), AutopilotOptions::kDecisionsMax);
    world.view().serving = true;
    world.search_fails = world.plans_are_given_up = false;
    world.Use(0, 1);
    world.Run(200);
    EXPECT_EQ(world.pilot().state(), "watching") << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace::cluster
