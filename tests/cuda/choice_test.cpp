// Which of several candidates is taken, by trainers that make up their times. No GPU is needed.
#include "choice/choice.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "choice/kept_choices.h"
#include "core/error.h"

namespace headroom::choice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

/// The world of the candidates: a clock that moves with what they do, and what they did.
struct World {
  double seconds = 0;
  std::vector<std::string> trained;  ///< whose block it was, in order; repetitions are one
  std::vector<std::string> made;
  int alive = 0, most_alive = 0;
  std::optional<std::string> broken;

  Surroundings surroundings() {
    return {.seconds = [this] { return seconds; }, .broken = [this] { return broken; }};
  }
};

/// Has steps of `step` seconds; its parameters are the number of steps that it has trained.
class MadeUpTrainer : public Trainer {
 public:
  struct Habits {
    double step = 1e-5;
    std::function<double(double now)> factor = nullptr;  ///< on a step, at a time
    int fails_at_call = 1 << 30;
    std::function<void()> failure = [] { throw std::runtime_error("invalid configuration argument"); };
  };
  MadeUpTrainer(World& world, std::string name, Habits habits)
      : world_(world), name_(std::move(name)), habits_(std::move(habits)) {
    world_.most_alive = std::max(world_.most_alive, ++world_.alive);
  }
  ~MadeUpTrainer() override { --world_.alive; }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    EXPECT_EQ(first_step, next_) << name_;
    next_ += count;
    if (++calls_ >= habits_.fails_at_call) habits_.failure();
    if (world_.trained.empty() || world_.trained.back() != name_) world_.trained.push_back(name_);
    const double factor = habits_.factor ? habits_.factor(world_.seconds) : 1;
    const double seconds = habits_.step * factor * static_cast<double>(count);
    world_.seconds += seconds;
    return {seconds, seconds, seconds};
  }
  std::vector<float> losses(std::int64_t, std::int64_t) override { return {}; }
  Parameters parameters() override {
    Parameters parameters({1, 1});
    parameters.flat()[0] = static_cast<float>(next_);
    return parameters;
  }
  void set_parameters(const Parameters& parameters) override {
    next_ = static_cast<std::int64_t>(parameters.flat()[0]);
  }
  std::string note() override { return "made up"; }

 private:
  World& world_;
  std::string name_;
  Habits habits_;
  std::int64_t next_ = 0;
  int calls_ = 0;
};

class ChoiceTest : public testing::Test {
 protected:
  ChoiceTest() {
    std::string name = (std::filesystem::temp_directory_path() / "choice-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder = name;
    workload.name = "any";
    workload.model.widths = {1, 1};
    workload.batch_size = 4;
  }
  ~ChoiceTest() override { std::filesystem::remove_all(folder); }

  Candidate candidate(const std::string& name, MadeUpTrainer::Habits habits) {
    return {.backend = name, .set_up = [this, name, habits] {
              world.made.push_back(name);
              return std::make_unique<MadeUpTrainer>(world, name, habits);
            }};
  }
  Candidate refusing(const std::string& name) {
    return {.backend = name,
            .set_up = []() -> std::unique_ptr<Trainer> { throw UnsupportedError("at most 8 layers"); }};
  }
  Measured measured(const std::vector<Candidate>& candidates) {
    return measure(candidates, rule, world.surroundings());
  }
  std::string taken(const std::vector<Candidate>& candidates) { return measured(candidates).choice.taken; }
  std::unique_ptr<Trainer> chosen(const std::vector<Candidate>& candidates, double since = 0) {
    world.made.clear();
    return make_chosen_trainer({.workload = workload,
                                .precision = Precision::kBf16,
                                .initial = initial,
                                .samples = 1024,
                                .gpu = "made-up GPU",
                                .cache_folder = folder.string(),
                                .since = since},
                               candidates, rule, world.surroundings());
  }
  std::filesystem::path kept_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "choices")) return entry.path();
    return {};
  }

  World world;
  Rule rule;
  Workload workload;
  Parameters initial{std::vector<int>{1, 1}};
  std::filesystem::path folder;
};

TEST_F(ChoiceTest, TakesTheFastestWhereverItStands) {
  const Candidate slow = candidate("slow", {.step = 3e-5}), middle = candidate("middle", {.step = 2e-5}),
                  fast = candidate("fast", {.step = 1e-5});
  EXPECT_EQ(taken({slow, middle, fast}), "fast");
  EXPECT_EQ(taken({fast, middle, slow}), "fast");
  EXPECT_EQ(taken({middle, fast, slow}), "fast");
}

TEST_F(ChoiceTest, AnEarlierOneStaysUnlessALaterOneIsThreePercentFaster) {
  const Candidate first = candidate("first", {.step = 1e-5});
  EXPECT_EQ(taken({first, candidate("second", {.step = 0.98e-5})}), "first");
  EXPECT_EQ(taken({first, candidate("second", {.step = 0.96e-5})}), "second");
  EXPECT_EQ(taken({first, candidate("second", {.step = 1e-5})}), "first");
}

TEST_F(ChoiceTest, DriftDoesNotDecideBecauseBlocksAreInterleaved) {
  // By the end everything is half as fast again: timed one after the other the second would lose by far.
  const auto drift = [](double now) { return 1 + 10 * now; };
  EXPECT_EQ(taken({candidate("first", {.step = 1e-5, .factor = drift}),
                   candidate("second", {.step = 0.95e-5, .factor = drift})}),
            "second");
  const std::vector<std::string>& order = world.trained;
  // Each found its block's length; then ABBA ABBA ABBA.
  EXPECT_THAT(order, ElementsAre("first", "second", "first", "second", "first", "second", "first", "second",
                                 "first"));
}

TEST_F(ChoiceTest, OneBlockThatIsOffDoesNotDecide) {
  int calls = 0;
  const auto hiccup = [&](double) { return ++calls == 12 ? 40.0 : 1.0; };
  EXPECT_EQ(
      taken({candidate("first", {.step = 1.2e-5}), candidate("second", {.step = 1e-5, .factor = hiccup})}),
      "second");
}

TEST_F(ChoiceTest, ACandidateFarBehindIsTimedOnce) {
  const Choice choice =
      measured({candidate("first", {.step = 1e-5}), candidate("second", {.step = 1e-4})}).choice;
  EXPECT_THAT(world.trained, ElementsAre("first", "second"));
  EXPECT_NEAR(*choice.candidates[1].step_seconds, 1e-4, 1e-9);
}

TEST_F(ChoiceTest, TheRecordSaysWhatEachTookAndWhyOthersAreOut) {
  Candidate large = candidate("large", {});
  large.out_of_reach = [] { return "not tried: needs 900 GB"; };
  const Choice choice =
      measured({candidate("a", {.step = 2e-5}), refusing("b"), large, candidate("c", {.step = 1.5e-5})})
          .choice;
  EXPECT_EQ(choice.taken, "c");
  EXPECT_FALSE(choice.was_kept);
  ASSERT_EQ(choice.candidates.size(), 4u);
  EXPECT_NEAR(*choice.candidates[0].step_seconds, 2e-5, 1e-9);
  EXPECT_EQ(choice.candidates[1].left_out, "at most 8 layers");
  EXPECT_FALSE(choice.candidates[1].step_seconds);
  EXPECT_EQ(choice.candidates[2].left_out, "not tried: needs 900 GB");
  EXPECT_NEAR(*choice.candidates[3].step_seconds, 1.5e-5, 1e-9);
  EXPECT_THAT(world.made, ElementsAre("a", "c"));
}

TEST_F(ChoiceTest, HoldsNoMoreThanTwoTrainersAtOnce) {
  const Measured best = measured({candidate("a", {.step = 4e-5}), candidate("b", {.step = 3e-5}),
                                  candidate("c", {.step = 2e-5}), candidate("d", {.step = 5e-5})});
  EXPECT_EQ(world.most_alive, 2);
  EXPECT_EQ(world.alive, 1);
}

TEST_F(ChoiceTest, TheOnlyOneIsNotTimed) {
  const Choice choice = measured({refusing("a"), candidate("b", {})}).choice;
  EXPECT_EQ(choice.taken, "b");
  EXPECT_FALSE(choice.candidates[1].step_seconds);
  EXPECT_THAT(world.trained, ElementsAre());
}

TEST_F(ChoiceTest, OneThatFailsIsLeftOutWithItsMessageWheneverItFails) {
  const Candidate good = candidate("good", {.step = 2e-5});
  for (const int call : {1, 2, 3, 4, 6, 9}) {
    const Candidate bad = candidate("bad", {.step = 1.9e-5, .fails_at_call = call});
    for (const bool first : {true, false}) {
      const Choice choice = measured(first ? std::vector{bad, good} : std::vector{good, bad}).choice;
      EXPECT_EQ(choice.taken, "good") << call;
      EXPECT_EQ(choice.candidates[first ? 0 : 1].left_out, "failed: invalid configuration argument") << call;
      EXPECT_FALSE(choice.candidates[first ? 0 : 1].step_seconds) << call;
    }
  }
}

TEST_F(ChoiceTest, OneThatFailsToBeSetUpIsLeftOut) {
  const Candidate bad{.backend = "bad", .set_up = []() -> std::unique_ptr<Trainer> {
                        throw OutOfMemoryError("asked for 80 GB");
                      }};
  const Choice choice = measured({bad, candidate("good", {})}).choice;
  EXPECT_EQ(choice.taken, "good");
  EXPECT_EQ(choice.candidates[0].left_out, "failed: asked for 80 GB");
}

TEST_F(ChoiceTest, ATimeThatIsNoneIsAFailure) {
  const Choice choice = measured({candidate("bad", {.step = 0}), candidate("good", {.step = 1})}).choice;
  EXPECT_EQ(choice.taken, "good");
  EXPECT_THAT(choice.candidates[0].left_out, StartsWith("failed: its steps took"));
}

TEST_F(ChoiceTest, WhereAllRefuseTheReasonsAreSaid) {
  try {
    measured({refusing("a"), refusing("b")});
    FAIL() << "somebody was taken";
  } catch (const UnsupportedError& error) {
    EXPECT_STREQ(error.what(), "a: at most 8 layers; b: at most 8 layers");
  }
}

TEST_F(ChoiceTest, WhereTheOnlyOneFailsItsFailureIsSaid) {
  const Candidate bad{.backend = "bad", .set_up = []() -> std::unique_ptr<Trainer> {
                        throw OutOfMemoryError("asked for 80 GB");
                      }};
  EXPECT_THROW(measured({refusing("a"), bad}), OutOfMemoryError);
}

TEST_F(ChoiceTest, WhatWouldTakeTooLongIsNotTried) {
  const Choice choice =
      measured({candidate("a", {.step = 5}), candidate("b", {.step = 4}), candidate("c", {.step = 1})})
          .choice;
  EXPECT_EQ(choice.taken, "b");
  EXPECT_THAT(choice.candidates[2].left_out, StartsWith("not tried: timing the others took"));
}

TEST_F(ChoiceTest, TheTrainerThatStaysBeginsAtTheInitialState) {
  const auto trainer = chosen({candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})});
  EXPECT_EQ(trainer->parameters().flat()[0], 0);
  EXPECT_THAT(trainer->note(), AllOf(StartsWith("takes b: made up; timed: a 20 us, b 10 us")));
}

TEST_F(ChoiceTest, TheNoteSaysWhoWasLeftOutAndWhyOnce) {
  const Candidate named{
      .backend = "c", .set_up = []() -> std::unique_ptr<Trainer> { throw UnsupportedError("c: too wide"); }};
  EXPECT_EQ(chosen({refusing("a"), candidate("b", {}), named})->note(),
            "takes b: made up; left out: a: at most 8 layers, c: too wide");
}

TEST_F(ChoiceTest, TheNextRunTakesTheSameAndTimesNothing) {
  chosen({candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})});
  world.trained.clear();
  workload.name = "another", workload.seed = 77;
  // By now the other would be the faster one.
  const auto trainer = chosen({candidate("a", {.step = 1e-6}), candidate("b", {.step = 1e-5})});
  EXPECT_THAT(world.made, ElementsAre("b"));
  EXPECT_THAT(world.trained, ElementsAre());
  const Choice choice = *trainer->choice();
  EXPECT_EQ(choice.taken, "b");
  EXPECT_TRUE(choice.was_kept);
  EXPECT_NEAR(*choice.candidates[0].step_seconds, 2e-5, 1e-9);
}

TEST_F(ChoiceTest, ChooseAgainMeasuresAnewAndKeepsThat) {
  chosen({candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})});
  const std::vector<Candidate> now = {candidate("a", {.step = 1e-6}), candidate("b", {.step = 1e-5})};
  const double later = 1e12;  // in a far future
  EXPECT_EQ(chosen(now, later)->choice()->taken, "a");
  EXPECT_EQ(chosen(now)->choice()->taken, "a");
  EXPECT_THAT(world.made, ElementsAre("a"));
}

TEST_F(ChoiceTest, AnotherWorkloadHasAChoiceOfItsOwn) {
  const std::string key = key_of("gpu", "sources", workload, Precision::kBf16, 1024);
  Workload named = workload;
  named.name = "other", named.seed = 9;
  EXPECT_EQ(key_of("gpu", "sources", named, Precision::kBf16, 1024), key);
  std::vector<std::string> others = {key_of("other gpu", "sources", workload, Precision::kBf16, 1024),
                                     key_of("gpu", "other sources", workload, Precision::kBf16, 1024),
                                     key_of("gpu", "sources", workload, Precision::kFp16, 1024),
                                     key_of("gpu", "sources", workload, Precision::kBf16, 2048)};
  const auto changed = [&](auto change) {
    Workload other = workload;
    change(other);
    others.push_back(key_of("gpu", "sources", other, Precision::kBf16, 1024));
  };
  changed([](Workload& other) { other.batch_size = 8; });
  changed([](Workload& other) { other.devices = 2; });
  changed([](Workload& other) { other.model.widths = {1, 1, 1}; });
  changed([](Workload& other) { other.model.activation = Activation::kTanh; });
  changed([](Workload& other) { other.loss = Loss::kMeanSquaredError; });
  changed([](Workload& other) { other.optimizer.kind = Optimizer::Kind::kAdam; });
  changed([](Workload& other) { other.optimizer.momentum = 0.9; });
  for (const std::string& other : others) EXPECT_NE(other, key);
  std::ranges::sort(others);
  EXPECT_EQ(std::ranges::adjacent_find(others), others.end());
}

TEST_F(ChoiceTest, ADamagedFileIsMeasuredAgain) {
  const std::vector<Candidate> candidates = {candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})};
  chosen(candidates);
  std::ifstream in(kept_file());
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  std::string other = whole;
  other[other.find("\nb\n") + 1] = 'a';
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2), other, whole + "c - \n",
                                  std::string("headroom choice 1\n"), std::string(5000, '\n')}) {
    std::ofstream(kept_file()) << text;
    EXPECT_EQ(chosen(candidates)->choice()->taken, "b");
    EXPECT_THAT(world.made, ElementsAre("a", "b"));
  }
}

TEST_F(ChoiceTest, AKeptOneThatCannotBeHadAnyMoreIsChosenAgain) {
  chosen({candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})});
  EXPECT_EQ(chosen({candidate("a", {}), refusing("b")})->choice()->taken, "a");
  EXPECT_EQ(chosen({candidate("c", {})})->choice()->taken, "c");
}

TEST_F(ChoiceTest, WhatIsLeftOutKeepsItsReasonInTheKeptChoice) {
  const std::vector<Candidate> candidates = {refusing("a"), candidate("b", {}),
                                             candidate("c", {.step = 9e-5})};
  chosen(candidates);
  EXPECT_EQ(chosen(candidates)->choice()->candidates[0].left_out, "at most 8 layers");
}

TEST_F(ChoiceTest, OneThatTakesTheDeviceWithItIsLeftOutByTheNextProcess) {
  const Candidate good = candidate("good", {.step = 2e-5});
  const Candidate stuck =
      candidate("stuck", {.fails_at_call = 2, .failure = [] { throw DeviceStuckError("waits"); }});
  EXPECT_THROW(chosen({good, stuck}), DeviceStuckError);
  const Choice choice = *chosen({good, stuck})->choice();
  EXPECT_EQ(choice.taken, "good");
  EXPECT_EQ(choice.candidates[1].left_out, "lost the device: waits");
}

TEST_F(ChoiceTest, AnErrorThatTheDeviceKeepsIsTheEndOfTheProcess) {
  const Candidate bad = candidate("bad", {.fails_at_call = 2, .failure = [this] {
                                            world.broken = "an illegal memory access was encountered";
                                            throw std::runtime_error("launch failed");
                                          }});
  EXPECT_THROW(chosen({candidate("good", {}), bad}), DeviceStuckError);
  world.broken.reset();
  EXPECT_THAT(chosen({candidate("good", {}), bad})->choice()->candidates[1].left_out,
              AllOf(StartsWith("lost the device: "), HasSubstr("illegal memory access")));
}

TEST_F(ChoiceTest, NothingIsKeptWithoutAFolder) {
  const std::filesystem::path kept = folder;
  const std::vector<Candidate> candidates = {candidate("a", {.step = 2e-5}), candidate("b", {.step = 1e-5})};
  for (int i = 0; i < 2; ++i) {
    folder.clear();
    chosen(candidates);
    folder = kept;
    EXPECT_THAT(world.made, ElementsAre("a", "b"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace headroom::choice
