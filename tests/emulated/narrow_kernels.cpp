// The kernel for narrow networks, for each of the tests' cases, on the GPU that the CPU plays.
#include "narrow_kernels.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "narrow/step.cuh"
#include "narrow_cases.h"
#include "runtime.h"

namespace headroom::emulated {
namespace {

using narrow::Arguments;
using narrow::Plan;

template <std::size_t kCase, Precision kPrecision>
struct CaseNetwork {
  static constexpr Plan kPlan = narrow::plan_of_case(narrow::kCases[kCase], kPrecision);
};
struct Entry {
  Plan plan;
  void (*kernel)(Arguments);
};

template <std::size_t... kCase>
std::vector<Entry> entries(std::index_sequence<kCase...>) {
  std::vector<Entry> all;
  const auto add = [&]<std::size_t kOne>() {
    const auto in = [&]<Precision kPrecision>() {
      using Network = CaseNetwork<kOne, kPrecision>;
      all.push_back({Network::kPlan, narrow::narrow_kernel<Network>});
    };
    in.template operator()<Precision::kFp32>();
    in.template operator()<Precision::kTf32>();
    in.template operator()<Precision::kFp16>();
    in.template operator()<Precision::kBf16>();
  };
  (add.template operator()<kCase>(), ...);
  return all;
}

class EmulatedStep : public narrow::StepKernel {
 public:
  explicit EmulatedStep(const Entry& entry) : entry_(entry) {}
  void launch(const Arguments& arguments, Stream& stream) const override {
    const Plan& plan = entry_.plan;
    cudaLaunchAttribute attribute{};
    if (plan.is_clustered != 0) {
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(plan.blocks), 1, 1};
    } else {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
    config.blockDim = dim3(static_cast<unsigned>(narrow::threads(plan)));
    config.dynamicSmemBytes = static_cast<std::size_t>(narrow::shared_bytes(plan));
    config.stream = stream.get();
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA_CHECK(launch_thread(config, [kernel = entry_.kernel, arguments] { kernel(arguments); }));
  }
  const Plan& plan() const override { return entry_.plan; }
  bool was_kept() const override { return true; }
  std::string note() const override { return "its kernel runs on the CPU"; }

 private:
  Entry entry_;
};

}  // namespace

std::unique_ptr<narrow::StepKernel> narrow_kernel(const Workload& workload, Precision precision,
                                                  const narrow::Limits& limits,
                                                  const std::optional<Plan>& chosen) {
  const Plan plan = chosen ? *chosen : narrow::make_plan(narrow::plan_of(workload, precision), limits);
  static const std::vector<Entry> all = entries(std::make_index_sequence<std::size(narrow::kCases)>());
  for (const Entry& entry : all)
    if (std::memcmp(&entry.plan, &plan, sizeof plan) == 0) return std::make_unique<EmulatedStep>(entry);
  throw std::logic_error("no kernel of this plan was compiled for the CPU");
}

}  // namespace headroom::emulated
