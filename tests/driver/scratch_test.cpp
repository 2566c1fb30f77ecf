// Scratch folders: whose they are, and which of them are leftovers.
#include "driver/system/scratch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "temporary_folder.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

class Leftovers : public testing::Test {
 protected:
  // A scratch folder as a program leaves it that was killed.
  fs::path leave(const std::string& name) const {
    const fs::path folder = parent_.path() / name;
    fs::create_directories(folder / "1" / "own");
    std::ofstream(folder / "1" / "own" / "initial.f32") << "large";
    std::ofstream(folder / "0.log") << "text";
    std::ofstream(folder / kOwnerLock);
    return folder;
  }
  std::set<std::string> left_after_removal() const {
    remove_leftovers(parent_.path());
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(parent_.path())) names.insert(entry.path().filename());
    return names;
  }

  TemporaryFolder parent_;
};

TEST_F(Leftovers, OfProgramsThatAreGoneAreRemoved) {
  leave("headroom-1-AAAAAA");
  leave("headroom-" + std::to_string(getpid()) + "-AAAAAA");  // a process's number may be another's by now
  EXPECT_THAT(left_after_removal(), testing::IsEmpty());
}

TEST_F(Leftovers, AreNotWhatALivingProgramHolds) {
  const fs::path folder = leave("headroom-1-AAAAAA");
  const int held = open((folder / kOwnerLock).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(left_after_removal(), testing::ElementsAre("headroom-1-AAAAAA"));
  EXPECT_TRUE(fs::exists(folder / "1" / "own" / "initial.f32"));
  close(held);
  EXPECT_THAT(left_after_removal(), testing::IsEmpty());
}

TEST_F(Leftovers, AreNotWhatSomebodyElseMade) {
  const std::set<std::string> others = {"headroom-1-FIFO", "headroom-1-NOLOCK", "headroom-GPU-1.lock",
                                        "headroom-test-1", "headroom-x1-A",     "mine"};
  for (const std::string& name : others) leave(name);
  fs::remove(parent_.path() / "headroom-1-NOLOCK" / kOwnerLock);
  fs::remove(parent_.path() / "headroom-1-FIFO" / kOwnerLock);
  ASSERT_EQ(mkfifo((parent_.path() / "headroom-1-FIFO" / kOwnerLock).c_str(), 0600), 0);
  EXPECT_EQ(left_after_removal(), others);
  for (const std::string& name : others)
    EXPECT_TRUE(fs::exists(parent_.path() / name / "1" / "own" / "initial.f32")) << name;
}

TEST_F(Leftovers, OfAnotherUserStay) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const fs::path folder = leave("headroom-1-AAAAAA");
  ASSERT_EQ(chown(folder.c_str(), 65534, 65534), 0);
  EXPECT_THAT(left_after_removal(), testing::ElementsAre("headroom-1-AAAAAA"));
  EXPECT_TRUE(fs::exists(folder / "0.log"));
}

TEST_F(Leftovers, LinksInThemAndToThemAreNotFollowed) {
  const TemporaryFolder elsewhere;
  const fs::path file = elsewhere.write("a", "mine");
  elsewhere.write(kOwnerLock, "");
  const fs::path folder = leave("headroom-1-AAAAAA");
  fs::create_directory_symlink(elsewhere.path(), folder / "1" / "link");
  fs::create_symlink(file, folder / "file-link");
  fs::create_directory_symlink(elsewhere.path(), parent_.path() / "headroom-2-AAAAAA");
  EXPECT_THAT(left_after_removal(), testing::ElementsAre("headroom-2-AAAAAA"));
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::exists(elsewhere.path() / kOwnerLock));
}

TEST(ScratchFolder, IsHeldUnderItsLockAndGoesWithAllThatIsInIt) {
  fs::path folder;
  {
    const Scratch scratch(0);
    folder = scratch.folder();
    std::ofstream(folder / "a") << "text";
    const int other = open((folder / kOwnerLock).c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(other, 0);
    EXPECT_NE(flock(other, LOCK_EX | LOCK_NB), 0);
    close(other);
    remove_leftovers(folder.parent_path());
    EXPECT_TRUE(fs::exists(folder / "a"));
  }
  EXPECT_FALSE(fs::exists(folder));
}

TEST(MadeFolder, IsTheOneThatWasMadeThoughALinkHasTakenItsPlace) {
  const TemporaryFolder parent, elsewhere;
  const fs::path file = elsewhere.write("a", "mine");
  fs::create_directory(parent.path() / "1");
  {
    const MadeFolder made = MadeFolder::numbered(parent.path());
    EXPECT_EQ(made.path(), parent.path() / "2");
    fs::rename(made.path(), parent.path() / "moved");
    std::ofstream(parent.path() / "moved" / "b") << "text";
    fs::create_directory_symlink(elsewhere.path(), made.path());
  }
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::is_empty(parent.path() / "moved"));
}

}  // namespace
}  // namespace headroom
