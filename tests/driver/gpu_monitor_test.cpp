// NVML through a made-up library: what is read, what is missing, what is sampled during a block, and energy.
#include "driver/gpu/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "driver/gpu/energy.h"
#include "driver/gpu/nvml.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kUuid = "GPU-fa4e0000-0000-0000-0000-000000000001";

class FakeNvml : public testing::Test {
 protected:
  ~FakeNvml() override { unsetenv("FAKE_NVML"); }
  std::unique_ptr<Nvml> open(const char* wrong = "", const char* uuid = kUuid) {
    setenv("FAKE_NVML", wrong, 1);
    static const std::string library =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake-nvml" / "libnvidia-ml.so.1")
            .string();
    return Nvml::open(uuid, missing_, library.c_str());
  }
  std::string missing_;
};

TEST_F(FakeNvml, ReadsWhatTheDeviceSays) {
  const auto nvml = open();
  ASSERT_TRUE(nvml) << missing_;
  const NvmlSample sample = nvml->sample();
  EXPECT_EQ(sample.sm_clock_megahertz, 1980);
  EXPECT_EQ(sample.memory_clock_megahertz, 3201);
  EXPECT_EQ(sample.power_watts, 250);
  EXPECT_EQ(sample.temperature_celsius, 41);
  EXPECT_EQ(sample.throttle_bits, 0x4u);
  EXPECT_EQ(nvml->ecc_enabled(), true);
  EXPECT_EQ(nvml->uncorrected_ecc_errors(), 0);
  EXPECT_EQ(nvml->unreadable(), "");
}

TEST_F(FakeNvml, WhatIsMissingIsSaidInOneLine) {
  EXPECT_FALSE(Nvml::open(kUuid, missing_, "libnvidia-ml-not-there.so.1"));
  EXPECT_THAT(missing_, HasSubstr("libnvidia-ml-not-there.so.1) was not found"));
  EXPECT_FALSE(open("no-driver"));
  EXPECT_THAT(missing_, HasSubstr("Driver Not Loaded"));
  EXPECT_FALSE(open("", "GPU-another"));
  EXPECT_THAT(missing_, HasSubstr("GPU-another: Not Found"));
}

TEST_F(FakeNvml, WithoutPermissionEverythingIsUnknown) {
  GpuMonitor monitor(open("no-permission"));
  EXPECT_EQ(monitor.nvml().unreadable(),
            "SM clock, memory clock, power, temperature, throttle reasons, ECC, processes, energy");
  monitor.begin();
  const GpuState state = monitor.end();
  EXPECT_GE(state.samples, 1);
  EXPECT_FALSE(state.sm_clock_megahertz);
  EXPECT_FALSE(state.throttle_reasons);
  EXPECT_FALSE(state.other_processes);
  EXPECT_FALSE(measure_idle_watts({&monitor.nvml()}, 0.01));
}

TEST_F(FakeNvml, SamplesWhileABlockRunsAndOnlyThen) {
  GpuMonitor monitor(open("slowdown"));
  for (int block = 0; block < 3; ++block) {
    monitor.begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    const GpuState state = monitor.end();
    EXPECT_GE(state.samples, 3);
    EXPECT_LE(state.samples, 9);
    EXPECT_EQ(state.sm_clock_megahertz, 1980);
    EXPECT_THAT(*state.throttle_reasons, ElementsAre("software_power_cap", "hardware_thermal_slowdown"));
    EXPECT_EQ(state.uncorrected_ecc_errors, 0);
    EXPECT_EQ(state.other_processes, 0);
  }
}

TEST_F(FakeNvml, OtherProcessesAreThoseThatAreNotOfThisRun) {
  GpuMonitor monitor(open("other-process"));
  monitor.begin();
  EXPECT_EQ(monitor.end().other_processes, 1);
  setenv("FAKE_NVML", "other-namespace", 1);
  monitor.begin();
  EXPECT_FALSE(monitor.end().other_processes);
}

TEST_F(FakeNvml, AChildOfThisProcessIsNoOtherProcess) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_EQ(count_other_processes({child}), 0);
  EXPECT_EQ(count_other_processes({child, 1}), 1);
  EXPECT_FALSE(count_other_processes({1}));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(FakeNvml, IdlePowerIsEnergyOverTime) {
  const auto nvml = open();
  const auto watts = measure_idle_watts({nvml.get()}, 0.1);
  ASSERT_TRUE(watts);
  EXPECT_NEAR(*watts, 250, 25);
  const auto of_two = measure_idle_watts({nvml.get(), nvml.get()}, 0.1);
  ASSERT_TRUE(of_two);
  EXPECT_NEAR(*of_two, 500, 50);
  EXPECT_FALSE(measure_idle_watts({open("no-energy").get()}, 0.01));
}

TEST(ThrottleReasons, EveryBitHasAName) {
  EXPECT_THAT(throttle_reason_names(0), ElementsAre());
  EXPECT_THAT(throttle_reason_names(0x8 | 0x80), ElementsAre("hardware_slowdown", "hardware_power_brake"));
  EXPECT_THAT(throttle_reason_names(0x1 | 1ull << 63), ElementsAre("idle", "bit_63"));
}

TEST(GpuStates, AreMediansOfWhatWasRead) {
  NvmlSample fast, slow, silent;
  fast.sm_clock_megahertz = 1980;
  slow.sm_clock_megahertz = 1000;
  slow.throttle_bits = 0x8;
  const GpuState state = summarize({fast, slow, fast, silent});
  EXPECT_EQ(state.samples, 4);
  EXPECT_EQ(state.sm_clock_megahertz, 1980);
  EXPECT_FALSE(state.power_watts);
  EXPECT_THAT(*state.throttle_reasons, ElementsAre("hardware_slowdown"));
}

}  // namespace
}  // namespace headroom
