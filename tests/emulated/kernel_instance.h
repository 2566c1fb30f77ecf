// A kernel that is compiled for the network at hand, as one of the instances that tests have.
#pragma once

#include <string>

#include "resident/trainer.h"

namespace headroom::emulated {

class Instance : public resident::PlanKernel {
 public:
  Instance(const void* function, int threads) : function_(function), threads_(threads) {}
  const void* function() const override { return function_; }
  int threads() const override { return threads_; }
  bool was_kept() const override { return false; }
  std::string note() const override { return "its kernel is an instance of the tests"; }

 private:
  const void* function_;
  int threads_;
};

}  // namespace headroom::emulated
