// Files that are whole at every moment: what is there when writing fails, and who may write.
#include "driver/system/whole_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>
#include <thread>
#include <vector>

#include "core/error.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ReservedFile, OneOfTheManyThatAskAtOnceGetsTheName) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "made" / "a.json";
  std::vector<ReservedFile> asking(16);
  std::vector<int> got(asking.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < asking.size(); ++i) {
      threads.emplace_back([&, i] { got[i] = asking[i].create(file, std::to_string(i)); });
    }
  }
  EXPECT_EQ(std::count(got.begin(), got.end(), 1), 1);
  const auto winner = std::find(got.begin(), got.end(), 1) - got.begin();
  EXPECT_EQ(text_of(file), std::to_string(winner));
  EXPECT_EQ(files_in(file.parent_path()), 1u);
}

TEST(ReservedFile, NothingIsLeftOfAFileThatWasOnlyReserved) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "a.json";
  {
    ReservedFile reserved;
    ASSERT_TRUE(reserved.create(file, "nothing yet"));
    EXPECT_EQ(text_of(file), "nothing yet");
  }
  EXPECT_EQ(files_in(folder.path()), 0u);
  {
    ReservedFile reserved;
    ASSERT_TRUE(reserved.create(file, "nothing yet"));
    reserved.write("a record");
  }
  EXPECT_EQ(text_of(file), "a record");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(ReservedFile, IsHeldThroughEveryVersionAndFreeAfterwards) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "a.json";
  const auto refused = [&] {
    return message_of<InputError>([&] {
      ReservedFile second;
      second.hold(file);
    });
  };
  {
    ReservedFile first;
    ASSERT_TRUE(first.create(file, "1"));
    EXPECT_THAT(refused(), HasSubstr("another run is writing it"));
    first.write("2");
    EXPECT_THAT(refused(), HasSubstr("another run is writing it"));
    first.write("3");
    EXPECT_THAT(refused(), HasSubstr("another run is writing it"));
  }
  EXPECT_EQ(refused(), "");
  ReservedFile next;
  next.hold(file);
  EXPECT_THAT(refused(), HasSubstr("another run is writing it"));
  next.write("4");
  EXPECT_THAT(refused(), HasSubstr("another run is writing it"));
  EXPECT_EQ(text_of(file), "4");
}

TEST(ReservedFile, HoldingRefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  ReservedFile reserved;
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  for (const char* name : {"pipe", ".", "missing.json"}) {
    EXPECT_THAT(message_of<InputError>([&] { reserved.hold(folder.path() / name); }), HasSubstr(name));
  }
}

TEST(ReservedFile, WritesThroughALinkAndKeepsTheMode) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("a.json", "before");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_directory(folder.path() / "links");
  fs::create_symlink(file, folder.path() / "links" / "a.json");
  ReservedFile reserved;
  reserved.hold(folder.path() / "links" / "a.json");
  reserved.write("after");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "links" / "a.json"));
  EXPECT_EQ(text_of(file), "after");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(WholeFile, OnlyLeftoversThatNobodyHoldsAreRemoved) {
  const TemporaryFolder folder;
  const fs::path leftover = folder.write(".headroom-0123abcd", "half of a te");
  const fs::path held = folder.write(".headroom-4567abcd", "another run writes this now");
  const fs::path foreign = folder.write(".headroom-notes", "somebody's");
  const int descriptor = open(held.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(descriptor, LOCK_EX | LOCK_NB), 0);
  // Killed between its second name and the end of its first.
  const fs::path named = folder.write("named.json", "whole");
  fs::create_hard_link(named, folder.path() / ".headroom-89abcdef");
  ReservedFile reserved;
  reserved.hold(named);
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_FALSE(fs::exists(folder.path() / ".headroom-89abcdef"));
  EXPECT_EQ(text_of(named), "whole");
  EXPECT_TRUE(fs::exists(held));
  EXPECT_TRUE(fs::exists(foreign));
  close(descriptor);
}

TEST(WholeFile, SaysWhyItCannotBeWritten) {
  const std::string said = message_of<OutputError>([] { write_whole("text", "/proc/a.json"); });
  EXPECT_THAT(said, HasSubstr("/proc/a.json: cannot be written: "));
  EXPECT_EQ(said.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace headroom
