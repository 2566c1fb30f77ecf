#include "choice/choice.h"

#include "core/error.h"
#include "layered/trainer.h"
#include "resident/trainer.h"

namespace headroom {
namespace {

constexpr int kResidentBatch = 32;

/// A trainer that says which strategy it is.
class ChosenTrainer : public Trainer {
 public:
  ChosenTrainer(std::unique_ptr<Trainer> trainer, Strategy strategy, std::string refusals)
      : trainer_(std::move(trainer)), strategy_(strategy), refusals_(std::move(refusals)) {}

  Timing train(std::int64_t first_step, std::int64_t count) override {
    return trainer_->train(first_step, count);
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return trainer_->losses(first_step, count);
  }
  Parameters parameters() override { return trainer_->parameters(); }
  void set_parameters(const Parameters& parameters) override { trainer_->set_parameters(parameters); }
  std::int64_t peak_device_bytes() override { return trainer_->peak_device_bytes(); }
  std::string note() override {
    const std::string inner = trainer_->note();
    return "takes " + std::string(to_string(strategy_)) + (inner.empty() ? "" : ": " + inner) + refusals_;
  }

 private:
  std::unique_ptr<Trainer> trainer_;
  Strategy strategy_;
  std::string refusals_;
};

std::unique_ptr<Trainer> make_trainer(Strategy strategy, const Workload& workload, Precision precision,
                                      const DatasetView& data, const Parameters& initial, int device) {
  switch (strategy) {
    case Strategy::kResident:
      return make_resident_trainer(workload, precision, data, initial, device);
    case Strategy::kLayered:
      break;
  }
  return make_layered_trainer(workload, precision, data, initial, device);
}

}  // namespace

std::string_view to_string(Strategy strategy) {
  return strategy == Strategy::kResident ? "cuda-resident" : "cuda-layered";
}

std::vector<Strategy> strategies_by_speed(const Workload& workload, Precision) {
  // Weights that stay on the chip win wherever they fit, up to a batch that one group of rows holds.
  if (workload.batch_size <= kResidentBatch) return {Strategy::kResident, Strategy::kLayered};
  return {Strategy::kLayered};
}

std::optional<std::string> choice_unavailable(int device) { return layered_unavailable(device); }

std::unique_ptr<Trainer> make_chosen_trainer(const Workload& workload, Precision precision,
                                             const DatasetView& data, const Parameters& initial, int device) {
  const std::vector<Strategy> order = strategies_by_speed(workload, precision);
  std::string refusals;
  for (const Strategy strategy : order) {
    try {
      return std::make_unique<ChosenTrainer>(
          make_trainer(strategy, workload, precision, data, initial, device), strategy, refusals);
    } catch (const UnsupportedError& error) {
      if (strategy == order.back()) throw;
      refusals += "; refused: " + std::string(error.what());
    }
  }
  throw std::logic_error("no strategy to try for " + workload.name);
}

}  // namespace headroom
