// The lock of a device among users, and with something else in its place.
#include "driver/system/device_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder as /tmp is: everybody's.
class DeviceLockFile : public testing::Test {
 protected:
  DeviceLockFile() { chmod(folder_.path().c_str(), 01777); }

  std::string complaint() const {
    return message_of<InputError>([this] {
      DeviceLock lock;
      lock.try_acquire("GPU-1", folder_.path());
    });
  }

  TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "headroom-GPU-1.lock";
};

// Whether another user gets the lock: 1, or not: 0; 2 where there is no telling.
int asked_by_another_user(const fs::path& folder) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setuid(kNobody) != 0) _exit(3);
    try {
      DeviceLock lock;
      _exit(lock.try_acquire("GPU-1", folder) ? 1 : 0);
    } catch (const InputError&) {
      _exit(2);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST_F(DeviceLockFile, IsSeenByOtherUsersWhateverTheUmask) {
  const mode_t before = umask(077);
  DeviceLock lock;
  const bool taken = lock.try_acquire("GPU-1", folder_.path());
  umask(before);
  ASSERT_TRUE(taken);
  EXPECT_EQ(fs::status(file_).permissions(), fs::perms(0644));
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(asked_by_another_user(folder_.path()), 0);
}

TEST_F(DeviceLockFile, OfAnOlderVersionIsMadeReadable) {
  folder_.write(file_.filename(), "");
  chmod(file_.c_str(), 0600);
  if (geteuid() == 0) {
    EXPECT_EQ(asked_by_another_user(folder_.path()), 2);
  }
  DeviceLock lock;
  EXPECT_TRUE(lock.try_acquire("GPU-1", folder_.path()));
  if (geteuid() == 0) {
    EXPECT_EQ(asked_by_another_user(folder_.path()), 0);
  }
}

TEST_F(DeviceLockFile, OfAnotherUserCanBeLocked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(asked_by_another_user(folder_.path()), 1);  // and leaves the file
  struct stat status{};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_NE(status.st_uid, 0u);
  DeviceLock lock;
  EXPECT_TRUE(lock.try_acquire("GPU-1", folder_.path()));
  EXPECT_EQ(asked_by_another_user(folder_.path()), 0);
}

TEST_F(DeviceLockFile, ThatIsASymbolicLinkIsNotTaken) {
  fs::create_symlink(folder_.path() / "elsewhere", file_);
  EXPECT_THAT(complaint(), HasSubstr(file_.string() + " cannot be taken: it is a symbolic link"));
  folder_.write("elsewhere", "");
  EXPECT_THAT(complaint(), HasSubstr("it is a symbolic link"));
}

TEST_F(DeviceLockFile, ThatIsAFolderIsNotTaken) {
  fs::create_directory(file_);
  EXPECT_THAT(complaint(), HasSubstr(file_.string() + " cannot be taken: it is a folder"));
}

TEST_F(DeviceLockFile, ThatIsAPipeIsNotTakenAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0666), 0);
  EXPECT_THAT(complaint(), HasSubstr(file_.string() + " cannot be taken: it is no file"));
}

TEST_F(DeviceLockFile, WithoutAFolderIsNotTaken) {
  const std::string complaint = message_of<InputError>([this] {
    DeviceLock lock;
    lock.try_acquire("GPU-1", folder_.path() / "nowhere");
  });
  EXPECT_THAT(complaint, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace headroom
