// The words of the results file.
#include "core/record.h"

#include <gtest/gtest.h>

namespace headroom {
namespace {

TEST(Record, EnumerationsAreSpelledAsInTheSchema) {
  EXPECT_EQ(to_string(Contract::kExact), "exact");
  EXPECT_EQ(to_string(Contract::kAutocast), "autocast");
  EXPECT_EQ(to_string(Contract::kLibrary), "library");
  EXPECT_EQ(to_string(Outcome::kOk), "ok");
  EXPECT_EQ(to_string(Outcome::kSkipped), "skipped");
  EXPECT_EQ(to_string(Outcome::kFailed), "failed");
  EXPECT_EQ(to_string(Verdict::kPass), "pass");
  EXPECT_EQ(to_string(Verdict::kFail), "fail");
  EXPECT_EQ(to_string(Verdict::kNotRun), "not_run");
}

}  // namespace
}  // namespace headroom
