// Tables and prose that fit a terminal.
#include "driver/system/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace headroom {
namespace {

using testing::HasSubstr;
using testing::Not;

Table measured() {
  return {{"workload", "backend", "step", "interval", "result"},
          {{"mlp-784x128x10-b32", "pytorch-eager", "40.6 us", "40.5 us .. 40.7 us", "verified"},
           {"mlp-784x128x10-b32", "cuda-resident", "4.06 us", "4.05 us .. 4.07 us", "FAILED: out of memory"},
           {"mlp-9x5-b4", "pytorch-eager", "30.6 us", "30.5 us .. 30.7 us", "verified"}},
          {2, 3},
          1,
          {3}};
}

std::size_t longest_line(const std::string& text) {
  std::istringstream stream(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(stream, line);) longest = std::max(longest, characters(line));
  return longest;
}

TEST(ColumnsText, MakesColumnsOfRowsOfSeveralFieldsAlone) {
  EXPECT_EQ(columns_text({{"copy", "4.2", "read and written"}, {"a line by itself"}, {"launch", "12.2", ""}},
                         2, {1}),
            "  copy     4.2  read and written\n"
            "  a line by itself\n"
            "  launch  12.2  \n");
  EXPECT_EQ(columns_text({{"alone"}}, 4), "    alone\n");
}

TEST(Table, IsWholeWhereThereIsNoTerminalOrAWideOne) {
  const std::string whole = table_text(measured());
  EXPECT_EQ(table_text(measured(), 200), whole);
  EXPECT_THAT(whole, HasSubstr("workload            backend           step            interval  result\n"
                               "mlp-784x128x10-b32  pytorch-eager  40.6 us  40.5 us .. 40.7 us  verified\n"));
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 4);
}

TEST(Table, PutsWhatRowsHaveInCommonAboveThemFirst) {
  const std::string text = table_text(measured(), 70);
  EXPECT_LE(longest_line(text), 70u);
  EXPECT_THAT(text, HasSubstr("mlp-784x128x10-b32\n  pytorch-eager  40.6 us"));
  EXPECT_THAT(text, HasSubstr("verified\n  cuda-resident"));  // no second heading
  EXPECT_THAT(text, HasSubstr("40.5 us .. 40.7 us"));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
}

TEST(Table, LeavesColumnsOutNextAndSaysWhich) {
  const std::string text = table_text(measured(), 50);
  EXPECT_LE(longest_line(text), 50u);
  EXPECT_THAT(text, Not(HasSubstr("40.5 us .. 40.7 us")));
  EXPECT_THAT(text, HasSubstr("  cuda-resident  4.06 us  FAILED: out of memory\n"));
  EXPECT_THAT(text, HasSubstr("left out at this width: interval\n"));
}

TEST(Table, ListsEveryFieldOfARowAtLast) {
  const std::string text = table_text(measured(), 35);
  EXPECT_LE(longest_line(text), 35u);
  EXPECT_THAT(text, HasSubstr("mlp-9x5-b4\n"
                              "  pytorch-eager\n"
                              "    step      30.6 us\n"
                              "    interval  30.5 us .. 30.7 us\n"
                              "    result    verified\n"));
}

TEST(Wrapped, BreaksAtBlanksBelowTheLastColumn) {
  EXPECT_EQ(wrapped("  cuda-resident  FAILED: out of memory\nshort\n", 30),
            "  cuda-resident  FAILED: out\n                 of memory\nshort\n");
  EXPECT_EQ(wrapped("All five records are verified.", 12), "All five\nrecords are\nverified.");
}

TEST(Wrapped, KeepsAWordThatIsLongerThanTheLine) {
  EXPECT_EQ(wrapped("Results: /a/rather/long/path.json is complete", 12),
            "Results:\n/a/rather/long/path.json\nis complete");
  EXPECT_EQ(wrapped("/a/rather/long/path.json", 12), "/a/rather/long/path.json");
  EXPECT_EQ(wrapped("", 12), "");
  EXPECT_EQ(wrapped("\n\n", 1), "\n\n");
}

TEST(Wrapped, ChangesNothingWhereThereIsNoTerminal) {
  const std::string text = "a  " + std::string(500, 'x') + " y\n\n  z";
  EXPECT_EQ(wrapped(text, kNoWidth), text);
}

TEST(CutText, EndsInDotsAndNeverInsideACharacter) {
  EXPECT_EQ(cut_to("timing blocks", 13), "timing blocks");
  EXPECT_EQ(cut_to("timing blocks", 12), "timing bl...");
  EXPECT_EQ(cut_to("\u00e4\u00f6\u00fc\u00e4\u00f6", 4), "\u00e4...");
  EXPECT_EQ(cut_to("timing", 2), "..");
  EXPECT_EQ(cut_to("timing", 0), "");
}

}  // namespace
}  // namespace headroom
