#include "driver/plan/drawn.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "driver/system/sources.h"

namespace headroom {
namespace {

/// The standard fixes the engine's numbers, and not those of its distributions; so these are here.
class Draw {
 public:
  explicit Draw(const std::string& word) : engine_(fnv1a64(word)) {}
  /// Even over 0 to count - 1; the remainder's bias is below count / 2^64.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  template <class Values>
  auto one_of(const Values& values) {
    return values[below(values.size())];
  }
  /// 1 to most, even over the logarithm.
  int up_to(int most) {
    const double share = static_cast<double>(engine_() >> 11) * 0x1p-53;  // 0 to below 1
    return std::clamp(static_cast<int>(std::pow(most + 1.0, share)), 1, most);
  }

 private:
  std::mt19937_64 engine_;
};

Workload draw_workload(const Drawing& drawing, Draw& draw) {
  Workload workload;
  const std::size_t layers = 1 + draw.below(static_cast<std::size_t>(drawing.most_layers));
  for (std::size_t i = 0; i <= layers; ++i) workload.model.widths.push_back(draw.up_to(drawing.most_width));
  workload.batch_size = draw.up_to(drawing.most_batch);
  workload.model.activation = draw.one_of(kAllActivations);
  workload.loss = draw.one_of(kAllLosses);
  if (workload.outputs() == 1 && workload.loss == Loss::kCrossEntropy)
    workload.loss = draw.one_of(std::vector{Loss::kMeanSquaredError, Loss::kBinaryCrossEntropy});
  using Kind = Optimizer::Kind;
  workload.optimizer = draw.one_of(std::vector<Optimizer>{{.kind = Kind::kSgd},
                                                          {.kind = Kind::kSgd, .momentum = 0.9},
                                                          {.kind = Kind::kAdam},
                                                          {.kind = Kind::kAdamW}});
  workload.name = default_name(workload);
  return workload;
}

}  // namespace

std::vector<SuiteWorkload> draw_workloads(const Drawing& drawing, const std::string& word) {
  Draw draw(word);
  std::vector<SuiteWorkload> drawn;
  while (drawn.size() < static_cast<std::size_t>(drawing.networks)) {
    SuiteWorkload entry{draw_workload(drawing, draw),
                        {{{draw.one_of(drawing.cells.precisions)}, drawing.cells.backends}}};
    if (std::none_of(drawn.begin(), drawn.end(),
                     [&](const SuiteWorkload& other) { return other.workload.name == entry.workload.name; }))
      drawn.push_back(std::move(entry));
  }
  return drawn;
}

}  // namespace headroom
