// What a workload takes, what a machine says that it has, and what is refused.
#include "driver/run/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/dataset.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::int64_t kGB = 1'000'000'000;

// A machine of 8,000,000 kB free whose process is in the control group /job/step.
class RoomTest : public testing::Test {
 protected:
  RoomTest() {
    put("proc/meminfo", "MemTotal:  16000000 kB\nMemAvailable:    8000000 kB\n");
    put("proc/self/cgroup", "0::/job/step\n");
  }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, text);
  }
  Room room() const { return room_here(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(RoomTest, WithoutALimitTheMachineSaysWhatIsThere) {
  EXPECT_EQ(room().memory, 8'000'000LL * 1024);
  EXPECT_EQ(room().memory_source, "MemAvailable");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/step/memory.current", "5000\n");
  EXPECT_EQ(room().memory, 8'000'000LL * 1024);
}

TEST_F(RoomTest, TheTightestGroupAroundTheProcessCounts) {
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/step/memory.current", "3000000000\n");
  put("sys/fs/cgroup/job/memory.max", "4000000000\n");
  put("sys/fs/cgroup/job/memory.current", "3500000000\n");
  put("sys/fs/cgroup/job/memory.stat", "anon 1000000000\ninactive_file 1500000000\nactive_file 500000000\n");
  // What files hold in memory is given back.
  EXPECT_EQ(room().memory, 2'500'000'000);
  EXPECT_EQ(room().memory_source, "the control group's limit");
}

TEST_F(RoomTest, GroupsOfTheFirstVersionCountToo) {
  put("proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/0123\n0::/\n");
  // A container sees its own group as the root.
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n");
  put("sys/fs/cgroup/memory/memory.stat", "total_active_file 100000000\n");
  EXPECT_EQ(room().memory, 1'600'000'000);
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(room().memory_source, "MemAvailable");
}

TEST(Capacity, TheNeedHoldsDataParametersAndTheOracle) {
  const Workload workload = parse_workload_name("mlp-100x200x10-b50");
  const std::int64_t parameters = 200 * 101 + 10 * 201;
  const Need need = need_of(workload, 1, false, 0);
  const std::int64_t data = 50 * (100 + 1) * 4;
  EXPECT_EQ(need.memory,
            data + data / 9 + parameters * (4 + 8 * 8 + 2 * 4) + 50 * (100 + 3 * 200 + 2 * 10) * 8);
  EXPECT_GT(need.scratch, 18 * parameters * 4 + data);
  EXPECT_GT(need_of(workload, 1, false, 3).scratch, need.scratch + 3 * data);
  // The GPU follows the oracle of a network that is too large for the CPU, and of that only.
  EXPECT_EQ(need_of(workload, 1, true, 0).memory, need.memory);
  const Workload large = parse_workload_name("mlp-4096x4096x4096x10-b1024");
  EXPECT_LT(need_of(large, 1, true, 0).memory, need_of(large, 1, false, 0).memory / 5);
}

TEST(Capacity, SlotsAndTargetsAreNeededToo) {
  const Workload plain = parse_workload_name("mlp-100x200x10-b50");
  const Workload adam = parse_workload_name("mlp-100x200x10-b50-mse-adam");
  const std::int64_t parameters = plain.parameter_count();
  const Need less = need_of(plain, 1, false, 0), more = need_of(adam, 1, false, 0);
  const std::int64_t targets = 50 * 9 * 4;  // ten outputs in place of a label
  const std::int64_t held_out = 50 * 110 * 4 / 9 - 50 * 101 * 4 / 9;
  // Two slots: of the oracle's state, a point's start and its end in double, and of the point in fp32.
  EXPECT_EQ(more.memory - less.memory, targets + held_out + parameters * (10 * 8 + 4 * 4));
  // Of each point's two files; of what is read back; and the state that training begins with.
  EXPECT_GE(more.scratch - less.scratch, targets + parameters * 4 * (2 * 17 + 3));
  EXPECT_LT(need_of(adam, 1, false, 2).scratch, 3 * more.scratch);
}

TEST(Capacity, ASetThatIsMadeHasTheSizeThatWasForeseen) {
  const Workload workload = parse_workload_name("mlp-7x5x3-b11");
  for (const std::int64_t least : {1, 309, 5000, 1'000'000}) {
    EXPECT_EQ(make_dataset(workload, least).train().samples, synthetic_train_samples(workload, least));
  }
}

TEST(Capacity, WhatDoesNotFitIsRefusedWithTheBytes) {
  const Workload workload = parse_workload_name("mlp-4x3x2-b5");
  const Room room{10 * kGB, "MemAvailable", 20 * kGB, 30 * kGB};
  const auto said = [&](const Need& need, const Room& there) {
    return message_of<InputError>([&] { refuse_too_large(workload, need, there); });
  };
  EXPECT_EQ(said({9 * kGB, kGB / 2}, room), "");
  EXPECT_THAT(said({11 * kGB, 0}, room), HasSubstr("'mlp-4x3x2-b5'"));
  EXPECT_THAT(said({11 * kGB, 0}, room),
              HasSubstr("take 11 GB of memory, 10 GB are free here (MemAvailable)"));
  // /dev/shm is memory too.
  EXPECT_THAT(said({9 * kGB, 2 * kGB}, room), HasSubstr("its temporary files 2 GB more in /dev/shm"));
  // What does not fit there goes to the temporary folder, on a disk.
  EXPECT_EQ(said({9 * kGB, 25 * kGB}, room), "");
  EXPECT_THAT(said({9 * kGB, 31 * kGB}, room), HasSubstr("temporary files take 31 GB"));
}

// 8192 wide with 131072 samples a batch, on the GPU machines that it is measured on.
TEST(Capacity, WhatRunsOnAGpuMachineIsNotRefused) {
  const Workload workload = parse_workload_name("mlp-784x8192x8192x8192x10-b131072");
  const Need need = need_of(workload, std::int64_t{200} << 20, true, 5);
  EXPECT_EQ(message_of<InputError>(
                [&] { refuse_too_large(workload, need, {120 * kGB, "MemAvailable", 64 * kGB, 60 * kGB}); }),
            "");
}

}  // namespace
}  // namespace headroom
