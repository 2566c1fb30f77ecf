// Files of fp32 values: in memory, where large ones are mapped, and on a disk.
#include "worker/float_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "core/error.h"
#include "core/parallel.h"
#include "worker/mapped_file.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

class FloatFile : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (::access(GetParam(), W_OK) != 0) GTEST_SKIP() << GetParam() << " cannot be written";
    file_ = fs::path(GetParam()) / ("headroom-float-file-" + std::to_string(::getpid()));
    set_parallel_threads(4);
  }
  void TearDown() override {
    set_parallel_threads(0);
    std::error_code ignored;
    fs::remove(file_, ignored);
  }

  static std::vector<float> random_values(std::int64_t count) {
    static std::mt19937 engine(std::random_device{}());
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(engine());
    return values;
  }

  fs::path file_;
};
INSTANTIATE_TEST_SUITE_P(, FloatFile, ::testing::Values("/dev/shm", "/tmp"),
                         [](const auto& folder) { return std::string(folder.param).substr(1, 3); });

// One value and no whole pages, a piece of 16 MiB and some; longer and shorter than what was there.
TEST_P(FloatFile, HoldsWhatWasWrittenLast) {
  for (const std::int64_t count : {1, 5000, 9'000'001, 4'194'304, 12'345'679, 3}) {
    const std::vector<float> values = random_values(count);
    write_floats(file_, values);
    EXPECT_EQ(read_floats(file_, count), values) << count << " values";
  }
}

TEST_P(FloatFile, OfAnotherSizeIsNotRead) {
  write_floats(file_, std::vector<float>(7));
  EXPECT_THROW(read_floats(file_, 8), std::runtime_error);
  EXPECT_THROW(read_floats(file_, 6), std::runtime_error);
}

// Of a FIFO nobody would ever get to the end.
TEST_P(FloatFile, ThatIsNoRegularFileIsNeitherReadNorWritten) {
  const fs::path other = file_.string() + "-other";
  const auto expect_refusal = [&](const std::string& what) {
    for (const bool write : {false, true}) {
      try {
        if (write) {
          write_floats(file_, std::vector<float>(7));
        } else {
          read_floats(file_, 7);
        }
        ADD_FAILURE() << what << (write ? " was written" : " was read");
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(file_.string()), std::string::npos) << error.what();
      }
    }
    EXPECT_THROW(MappedFile<float>(file_, 7), InputError) << what;
    fs::remove(file_);
  };
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  expect_refusal("a FIFO");
  write_floats(other, std::vector<float>(7, 1));
  fs::create_symlink(other, file_);
  expect_refusal("a link");
  EXPECT_EQ(read_floats(other, 7), std::vector<float>(7, 1));
  fs::remove(other);
  fs::create_symlink("/dev/zero", file_);
  expect_refusal("a device");
  fs::create_directory(file_);
  expect_refusal("a folder");
}

TEST_P(FloatFile, ThatCannotBeWrittenIsNamed) {
  const fs::path nowhere = file_ / "below-no-folder";
  try {
    write_floats(nowhere, std::vector<float>(7));
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(nowhere.string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headroom
