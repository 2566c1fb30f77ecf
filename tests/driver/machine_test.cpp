// What is recorded about a run's place, and the lock of a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "driver/system/device_lock.h"
#include "driver/system/host.h"
#include "driver/system/sources.h"
#include "driver/system/subprocess.h"
#include "driver/system/version.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::ElementsAre;

TEST(PublishableArguments, HoldNoPathsOfTheMachine) {
  EXPECT_THAT(
      publishable_argv({"/home/me/headroom/build/bin/headroom", "run", "--data", "/data/mnist", "--output",
                        "/home/me/headroom/results/runs/a.json", "--resume=/tmp/b.json", "--worker",
                        "mine=/opt/x/worker --log /var/log/y", "--data", "../shared/mnist", "--blocks", "12"},
                       "/home/me/headroom"),
      ElementsAre("headroom", "run", "--data", "mnist", "--output", "results/runs/a.json", "--resume=b.json",
                  "--worker", "mine=worker --log y", "--data", "mnist", "--blocks", "12"));
}

TEST(HostInfo, DoesNotNameTheMachine) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const HostInfo host = describe_host();
  for (const auto& text : {host.cpu, host.os, host.kernel}) EXPECT_NE(text.value_or(""), std::string(name));
  EXPECT_GE(host.cores.value_or(0), 1);
}

TEST(SourceDigest, ChangesWithContentsAndNamesOfSourcesOnly) {
  const TemporaryFolder folder;
  EXPECT_FALSE(source_digest(folder.path()));
  std::filesystem::create_directories(folder.path() / "bench");
  folder.write("bench/a.cpp", "1");
  const auto first = source_digest(folder.path());
  ASSERT_TRUE(first);
  folder.write("bench/notes.txt", "2");
  EXPECT_EQ(source_digest(folder.path()), first);
  folder.write("bench/a.cpp", "2");
  const auto second = source_digest(folder.path());
  EXPECT_NE(second, first);
  std::filesystem::rename(folder.path() / "bench/a.cpp", folder.path() / "bench/b.cpp");
  EXPECT_NE(source_digest(folder.path()), second);
}

TEST(SourceDigest, KnowsNothingOfWhatPipLeavesBehind) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "bench");
  folder.write("bench/a.cpp", "1");
  const auto before = source_digest(folder.path());
  std::filesystem::create_directories(folder.path() / "torch_impl/python/build/lib");
  folder.write("torch_impl/python/build/lib/copy.py", "1");
  EXPECT_EQ(source_digest(folder.path()), before);
}

TEST(Version, IsTheProjectsAndSaysSoWhereNoCommitIsKnown) {
  const TemporaryFolder folder;
  EXPECT_EQ(version_text(folder.path()), std::string(kVersion) + " (no commit is known)");
}

TEST(Programs, AreRunWithoutAShellAndWithALimit) {
  EXPECT_EQ(run_program({"echo", "$HOME; x"}, 10, false).output, "$HOME; x\n");
  EXPECT_EQ(run_program({"false"}, 10, false).exit_code, 1);
  EXPECT_EQ(run_program({"headroom-no-such-program"}, 10, false).exit_code, -1);
  EXPECT_EQ(run_program({"sleep", "20"}, 1, false).exit_code, -1);
}

TEST(DeviceLock, IsHeldByOneAndFreeAgainAfterwards) {
  const TemporaryFolder folder;
  {
    DeviceLock first, second, other_device;
    EXPECT_TRUE(first.try_acquire("GPU-1", folder.path()));
    EXPECT_FALSE(second.try_acquire("GPU-1", folder.path()));
    EXPECT_TRUE(other_device.try_acquire("GPU-2", folder.path()));
  }
  DeviceLock third;
  EXPECT_TRUE(third.try_acquire("GPU-1", folder.path()));
}

TEST(GitState, IsThatOfABuildMadeElsewhere) {
  const TemporaryFolder folder;
  ::setenv("HEADROOM_BUILD_GIT_SHA", "0123abc", 1);
  ::setenv("HEADROOM_BUILD_GIT_DIRTY", "no", 1);
  EXPECT_EQ(git_state(folder.path()).sha, "0123abc");
  EXPECT_EQ(git_state(folder.path()).dirty, false);
  ::setenv("HEADROOM_BUILD_GIT_SHA", "not a commit", 1);
  EXPECT_FALSE(git_state(folder.path()).sha.has_value());
  ::unsetenv("HEADROOM_BUILD_GIT_SHA");
  ::unsetenv("HEADROOM_BUILD_GIT_DIRTY");
  EXPECT_FALSE(git_state(folder.path()).dirty.has_value());
}

}  // namespace
}  // namespace headroom
