// The command lines that `headroom profile` prints.
#include "driver/run/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headroom {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Profile, WordsAreQuotedForAShell) {
  const std::string lines =
      profiler_lines({"./headroom", "profile", "w-b1", "--worker", "a=it's b", ""}, true);
  EXPECT_THAT(lines, HasSubstr("./headroom profile w-b1 --worker 'a=it'\\''s b' ''\n"));
}

TEST(Profile, OnlyAWorkerWithRangesIsAskedForOne) {
  EXPECT_THAT(profiler_lines({"x"}, true), HasSubstr("--nvtx --nvtx-include block"));
  EXPECT_THAT(profiler_lines({"x"}, false), Not(HasSubstr("--nvtx-include")));
}

TEST(Profile, BothProfilersFollowTheWorker) {
  const std::string lines = profiler_lines({"x"}, true);
  EXPECT_THAT(lines, HasSubstr("ncu --target-processes all "));
  EXPECT_THAT(lines, HasSubstr("nsys profile --trace=cuda,nvtx "));
}

}  // namespace
}  // namespace headroom
