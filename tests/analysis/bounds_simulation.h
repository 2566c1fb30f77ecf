// Random small networks, trained for a while and then one step further by correct code and by each planted fault: how often the step
// check passes the one and catches the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "analysis/verification.h"
#include "core/record.h"
#include "core/workload.h"

namespace headroom {

/// What is simulated together: precision and contract, activation, loss, and optimizer (sgd twice, without and with momentum).
struct SimulatedClass {
  Precision precision = Precision::kFp32;
  Contract contract = Contract::kExact;
  Activation activation = Activation::kRelu;
  Loss loss = Loss::kCrossEntropy;
  Optimizer::Kind optimizer = Optimizer::Kind::kSgd;
  bool momentum = false;

  std::string name() const;  ///< "bf16 autocast relu mse adam"
};
std::vector<SimulatedClass> all_classes();

struct Counts {
  std::int64_t networks = 0;
  std::int64_t passed = 0, failed = 0, cannot_be_checked = 0;  ///< correct code
  struct OfFault {
    std::int64_t caught = 0, missed = 0;
    std::int64_t cannot_be_checked = 0;  ///< or only tensors differ that are no evidence at any step
    std::int64_t invisible = 0;  ///< the faulty step is the correct one, but for the rounding of storage
  };
  std::map<std::string, OfFault> faults;
  struct OfFreeSteps {
    std::int64_t passed = 0, failed = 0;
  } free_steps;  ///< of correct code; of networks that are followed so far

  void add(const Counts& other);
};

struct SimulatedNetworks {
  std::int64_t first = 0, count = 0;
  std::uint64_t seed = 1;
  std::vector<int> widths{};  ///< empty: random
  int batch_size = 0;
  double spreads = 0;  ///< in place of the rule's
  int copies = kCopies;
  /// Told each network that was judged wrongly: a correct one that failed, a fault that passed.
  std::function<void(const std::string& text)> tell{};
};
Counts simulate(const SimulatedClass& simulated, const SimulatedNetworks& networks);

}  // namespace headroom
