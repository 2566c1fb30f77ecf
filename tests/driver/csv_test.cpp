// CSV: how fields are quoted, and the rows of blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "driver/results/formats/formats.h"
#include "driver/system/csv_text.h"

namespace headroom {
namespace {

using testing::HasSubstr;

TEST(Csv, PlainFieldsStayAsTheyAre) { EXPECT_EQ(csv_line({"a", "", "1e-05", "b c"}), "a,,1e-05,b c\n"); }

TEST(Csv, WhatWouldEndAFieldIsQuoted) {
  EXPECT_EQ(csv_line({"a,b", "say \"no\"", "two\nlines", "\r"}),
            "\"a,b\",\"say \"\"no\"\"\",\"two\nlines\",\"\r\"\n");
}

TEST(Csv, BlanksAtTheEndsOfAFieldAreKept) { EXPECT_EQ(csv_line({" a", "b "}), "\" a\",\"b \"\n"); }

Results example() {
  Results results;
  results.workloads = {{.workload = parse_workload_name("mlp-6x5x3-b4"), .dataset = {}}};
  Record record;
  record.workload = "mlp-6x5x3-b4";
  record.backend = "honest";
  record.blocks = {{0, 100, 1e-3 / 3, 3e-4, 1e-4, {}}, {5, 200, 8e-4, 9e-4, 2e-4, GpuState{}}};
  record.blocks[1].gpu->power_watts = 350.5;
  record.blocks[1].gpu->throttle_reasons = {"sw_power_cap", "hw_slowdown"};
  results.records = {record, record};
  mark_failed(results.records[1], "it died, twice");
  return results;
}

TEST(Csv, ABlockIsARowWithItsTimesInFull) {
  std::istringstream rows(blocks_csv(example(), "a.json"));
  std::string row;
  std::getline(rows, row);
  EXPECT_THAT(row, HasSubstr(",0,0,100,3.3333333333333333e-06,2.9999999999999997e-06,1e-06,,,,,"));
  std::getline(rows, row);
  EXPECT_THAT(row, HasSubstr(",1,5,200,"));
  EXPECT_THAT(row, HasSubstr(",350.5,,sw_power_cap; hw_slowdown"));
}

TEST(Csv, ARecordWithoutBlocksIsARowWithoutTimes) {
  const std::string rows = blocks_csv(example(), "a.json");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 3);
  EXPECT_THAT(rows, HasSubstr("failed,not_run,\"it died, twice\",,,,,,,,,,,\n"));
}

}  // namespace
}  // namespace headroom
