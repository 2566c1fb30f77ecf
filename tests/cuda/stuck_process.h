// What a process says of a device that is of no more use to it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/error.h"

namespace headroom {

/// Expects is_told(the message that train() throws in the first `steps` steps). On a GPU another process trains and says it: a launch that ends
/// with an error ends the process's use of the device.
template <class MakeTrainer, class IsTold>
void expect_stuck(const MakeTrainer& make_trainer, int steps, const IsTold& is_told) {
  const auto message = [&] {
    const auto trainer = make_trainer();
    try {
      trainer->train(0, steps);
    } catch (const DeviceStuckError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
#ifdef HEADROOM_EMULATED
  const std::string text = message();
  EXPECT_TRUE(is_told(text)) << text;
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const std::string text = message();
        std::fprintf(stderr, "%s\n", text.c_str());
        std::_Exit(is_told(text) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
#endif
}

}  // namespace headroom
