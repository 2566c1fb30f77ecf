// headroom-timed-worker: trains honestly on the CPU and makes up how long it took.
//
// The tests of `headroom compare` put it in the place of the CUDA worker of a build, with the times in HEADROOM_TIMES as
// `name=value` words: step_us, slowdown (a factor), process_sd and block_sd (relative, normally distributed; the first
// is drawn once a process), seed (of them; without it they differ from process to process), dies_after and fails_after (calls of train), lacks (a backend), takes (what `cuda` says that it has taken), learning_rate=wrong.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

#include "faulty_trainers.h"
#include "worker/server.h"

namespace headroom {
namespace {

class MadeUpTimes {
 public:
  MadeUpTimes() {
    const char* text = std::getenv("HEADROOM_TIMES");
    std::istringstream words(text == nullptr ? "" : text);
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos)
        throw std::runtime_error("HEADROOM_TIMES: expected name=value, found " + word);
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
    const auto seed = values_.find("seed");
    random_.seed(seed == values_.end() ? std::random_device{}() : std::stoull(seed->second));
    process_ = std::exp(number("process_sd", 0) * normal_(random_));
  }
  double number(const std::string& name, double otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : std::stod(found->second);
  }
  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "" : found->second;
  }
  bool is(const std::string& name, const std::string& value) const {
    const auto found = values_.find(name);
    return found != values_.end() && found->second == value;
  }
  double seconds(std::int64_t steps) {
    const double step = 1e-6 * number("step_us", 30) * number("slowdown", 1) * process_;
    return step * static_cast<double>(steps) * std::exp(number("block_sd", 0) * normal_(random_));
  }

 private:
  std::map<std::string, std::string> values_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double process_ = 1;
};

MadeUpTimes& made_up() {
  static MadeUpTimes times;
  return times;
}

class TimedTrainer : public Trainer {
 public:
  TimedTrainer(const TrainerRequest& request, bool chooses)
      : chooses_(chooses),
        honest_(make_faulty_trainer(
            request, made_up().is("learning_rate", "wrong") ? Fault::kLearningRate : Fault::kNone)) {}

  Timing train(std::int64_t first_step, std::int64_t count) override {
    static double calls = 0;
    ++calls;
    if (calls > made_up().number("dies_after", 1e9)) std::abort();
    if (calls > made_up().number("fails_after", 1e9)) throw std::runtime_error("the made-up kernel failed");
    honest_->train(first_step, count);
    const double seconds = made_up().seconds(count);
    return {seconds, seconds, seconds};
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return honest_->losses(first_step, count);
  }
  Parameters parameters() override { return honest_->parameters(); }
  void set_parameters(const Parameters& parameters) override { honest_->set_parameters(parameters); }
  std::optional<Choice> choice() override {
    const std::string taken = made_up().text("takes");
    if (taken.empty() || !chooses_) return std::nullopt;
    return Choice{
        taken, false, {{"cuda-layered", 3e-5, ""}, {"cuda-resident", 2e-5, ""}, {"cuda-fused", {}, "no"}}};
  }

 private:
  bool chooses_;
  std::unique_ptr<Trainer> honest_;
};

WorkerDescription describe(int) {
  WorkerDescription description{"cuda", {{"cuda_runtime", "made-up"}}, std::nullopt, {}};
  for (const std::string name : {"cuda-layered", "cuda-resident", "cuda"}) {
    if (made_up().is("lacks", name)) continue;
    Backend& backend = description.backends.emplace_back();
    backend.name = name;
    backend.family = Family::kOurs;
    backend.description = "with made-up times";
    backend.repeats = name == "cuda";
    for (const Precision precision : kAllPrecisions)
      backend.precisions.push_back({precision, Contract::kExact, std::nullopt});
    backend.make_trainer = [chooses = backend.repeats](const TrainerRequest& request) {
      return std::make_unique<TimedTrainer>(request, chooses);
    };
  }
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
