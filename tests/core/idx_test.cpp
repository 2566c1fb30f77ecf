// IDX files: read, permute, split, and every kind of broken file refused in one line.
#include "core/idx.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/dataset.h"
#include "core/error.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

// Image i has pixels i, i + 1, i + 2, i + 3 (mod 256) and the label i mod 3.
std::string images_file(std::uint32_t count, std::uint32_t magic = 0x803) {
  std::string bytes = word(magic) + word(count) + word(2) + word(2);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t pixel = 0; pixel < 4; ++pixel) bytes += static_cast<char>(i + pixel);
  }
  return bytes;
}

std::string labels_file(std::uint32_t count, std::uint32_t magic = 0x801) {
  std::string bytes = word(magic) + word(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 3);
  return bytes;
}

class Idx : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "headroom-idx-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void write_gzip(const std::string& name, const std::string& bytes) {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  std::string read(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  Workload workload(const std::string& name = "mlp-4x3-b5") {
    Workload result = parse_workload_name(name);
    result.dataset = {.kind = DatasetSpec::Kind::kIdx, .folder = folder_.string()};
    return result;
  }

  // The message of the InputError, which must be one line that begins with a path in the folder.
  std::string refusal(const std::string& name = "mlp-4x3-b5") {
    try {
      make_dataset(workload(name), 0);
    } catch (const InputError& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.rfind(folder_.string(), 0), 0u) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return message;
    }
    return "accepted";
  }

  void expect_refusal(const std::string& part, const std::string& name = "mlp-4x3-b5") {
    const std::string message = refusal(name);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  fs::path folder_;
};

TEST_F(Idx, PlainAndGzipFilesGiveTheSameData) {
  write("t10k-images-idx3-ubyte", images_file(40));
  write("t10k-labels-idx1-ubyte", labels_file(40));
  const Dataset plain = make_dataset(workload(), 0);
  fs::remove(folder_ / "t10k-images-idx3-ubyte");
  write_gzip("t10k-images-idx3-ubyte.gz", images_file(40));
  const Dataset gzip = make_dataset(workload(), 0);
  EXPECT_EQ(plain.digest, gzip.digest);
  EXPECT_EQ(gzip.description, "idx: t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte");
}

TEST_F(Idx, EverySampleKeepsItsLabelAndOccursOnce) {
  write("a-images", images_file(50));
  write("a-labels", labels_file(50));
  const Dataset data = make_dataset(workload(), 0);
  std::vector<int> seen;
  const auto look = [&](const DatasetView& view) {
    for (std::int64_t row = 0; row < view.samples; ++row) {
      const int index = static_cast<int>(view.features[row * 4] * 255.0f + 0.5f);
      EXPECT_EQ(view.features[row * 4 + 3], static_cast<float>(index + 3) / 255.0f);
      EXPECT_EQ(view.labels[row], index % 3);
      seen.push_back(index);
    }
  };
  look(data.train());
  EXPECT_FALSE(std::is_sorted(seen.begin(), seen.end()));
  look(data.held_out());
  EXPECT_EQ(data.held_out().samples, 5);
  std::sort(seen.begin(), seen.end());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen.at(static_cast<std::size_t>(i)), i);
}

TEST_F(Idx, TheSeedChangesTheOrderButNotWhatIsHeldOut) {
  write("a-images", images_file(50));
  write("a-labels", labels_file(50));
  Workload other = workload();
  other.seed = 2;
  const Dataset first = make_dataset(workload(), 0), second = make_dataset(other, 0);
  EXPECT_NE(first.train_features, second.train_features);
  EXPECT_EQ(first.held_out_features, second.held_out_features);
}

TEST_F(Idx, TheTrainingPairIsPreferred) {
  write("t10k-images-idx3-ubyte", images_file(30));
  write("t10k-labels-idx1-ubyte", labels_file(30));
  write("train-images-idx3-ubyte", images_file(60));
  write("train-labels-idx1-ubyte", labels_file(60));
  write("README", "not data");
  write("empty", "");
  EXPECT_EQ(make_dataset(workload(), 0).description, "idx: train-images-idx3-ubyte, train-labels-idx1-ubyte");
}

TEST_F(Idx, MissingFolderAndFilesAreNamed) {
  expect_refusal("no IDX images file");
  write("t10k-images-idx3-ubyte", images_file(30));
  expect_refusal("no IDX labels file");
  fs::remove_all(folder_);
  expect_refusal("not a folder");
}

TEST_F(Idx, TruncatedFilesAreRefused) {
  write("a-labels", labels_file(30));
  const std::string images = images_file(30);
  write("a-images", images.substr(0, images.size() - 1));
  expect_refusal("truncated: its header promises 120 bytes of data, the file holds 119");
  write("a-images", images.substr(0, 10));
  expect_refusal("truncated: the file ends within its header");
  write("a-images", "");
  expect_refusal("truncated: the file ends within its header");
  write("a-images", images);
  write("a-labels", labels_file(30).substr(0, 20));
  expect_refusal("truncated: its header promises 30 bytes of data, the file holds 12");
}

TEST_F(Idx, TruncatedGzipIsRefused) {
  write("a-labels", labels_file(30));
  write_gzip("a-images.gz", images_file(30));
  const std::string whole = read("a-images.gz");
  write("a-images.gz", whole.substr(0, whole.size() / 2));
  expect_refusal("truncated");
}

TEST_F(Idx, MoreBytesThanPromisedAreRefused) {
  write("a-images", images_file(30) + "x");
  write("a-labels", labels_file(30));
  expect_refusal("holds more than the 120 bytes");
}

TEST_F(Idx, AHeaderThatPromisesTooMuchTakesNoMemory) {
  std::string images = images_file(30);
  images.replace(4, 4, word(0xffffffff));
  std::string labels = labels_file(30);
  labels.replace(4, 4, word(0xffffffff));
  write("a-images", images);
  write("a-labels", labels);
  expect_refusal("truncated");
}

TEST_F(Idx, WrongMagicNumberIsRefused) {
  write("a-images", images_file(30, 0x802));
  write("a-labels", labels_file(30));
  expect_refusal("magic number 0x00000802, expected 0x00000803 (images)");
  write("a-images", images_file(30));
  write("a-labels", labels_file(30, 0x1234));
  expect_refusal("magic number 0x00001234, expected 0x00000801 (labels)");
}

TEST_F(Idx, CountsThatDifferAreRefused) {
  write("a-images", images_file(30));
  write("a-labels", labels_file(29));
  expect_refusal("29 labels for 30 images");
}

TEST_F(Idx, NoImagesAreRefused) {
  write("a-images", images_file(0));
  write("a-labels", labels_file(0));
  expect_refusal("holds no images");
}

TEST_F(Idx, ImagesOfAnotherSizeAreRefused) {
  write("a-images", images_file(30));
  write("a-labels", labels_file(30));
  expect_refusal("2x2 = 4 pixels, but the workload's input width is 784", "mlp-784x3-b5");
}

TEST_F(Idx, LabelsOutsideTheClassesAreRefused) {
  write("a-images", images_file(30));
  write("a-labels", labels_file(30));
  expect_refusal("label 2 of sample 2 is outside the workload's 2 classes", "mlp-4x2-b5");
}

TEST_F(Idx, ABatchLargerThanTheDataSetIsRefused) {
  write("a-images", images_file(30));
  write("a-labels", labels_file(30));
  EXPECT_EQ(make_dataset(workload("mlp-4x3-b27"), 0).train().batches(27), 1);
  expect_refusal("larger than the data set, which has 27 training samples", "mlp-4x3-b28");
}

}  // namespace
}  // namespace headroom
