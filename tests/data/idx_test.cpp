// IDX files: read, permute, split, and every kind of broken file refused in one line.
#include "data/idx.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"

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

// As QMNIST's: eight integers a sample, the class first.
std::string integer_labels_file(std::uint32_t count, std::uint32_t columns = 8) {
  std::string bytes = word(0xc02) + word(count) + word(columns);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t column = 0; column < columns; ++column) bytes += word(column == 0 ? i % 3 : 100 + i);
  }
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
  // A data set of `count` samples; {} in the name is 'images' or 'labels', and # is 3 or 1.
  void write_pair(const std::string& pattern, std::uint32_t count) {
    const auto name = [&](const std::string& word, const char* dimensions) {
      std::string result = pattern;
      result.replace(result.find("{}"), 2, word);
      if (const std::size_t at = result.find('#'); at != std::string::npos) result.replace(at, 1, dimensions);
      return result;
    };
    fs::create_directories((folder_ / pattern).parent_path());
    const bool capitals = pattern.find("IDX") != std::string::npos;
    write(name(capitals ? "IMAGES" : "images", "3"), images_file(count));
    write(name(capitals ? "LABELS" : "labels", "1"), labels_file(count));
  }
  std::string read(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  Workload workload(const std::string& name = "mlp-4x3-b5") {
    Workload result = parse_workload_name(name);
    result.dataset = {.kind = DatasetSpec::Kind::kIdx, .folder = (folder_ / below_).string()};
    return result;
  }
  std::string description() { return make_dataset(workload(), 0).description; }

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
  std::string below_;  // what is named, below the folder
};

TEST_F(Idx, PlainAndGzipFilesGiveTheSameData) {
  write("train-images-idx3-ubyte", images_file(40));
  write("train-labels-idx1-ubyte", labels_file(40));
  const Dataset plain = make_dataset(workload(), 0);
  fs::remove(folder_ / "train-images-idx3-ubyte");
  write_gzip("train-images-idx3-ubyte.gz", images_file(40));
  const Dataset gzip = make_dataset(workload(), 0);
  EXPECT_EQ(plain.digest, gzip.digest);
  EXPECT_EQ(gzip.description, "idx: train-images-idx3-ubyte.gz, train-labels-idx1-ubyte");
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

TEST_F(Idx, TheTrainingSetIsFoundByTheWordAnywhereInItsNameWhateverTheCase) {
  write_pair("T10K-{}.IDX#-UBYTE", 30);
  write_pair("TRAIN-{}.IDX#-UBYTE", 60);
  EXPECT_EQ(description(), "idx: TRAIN-IMAGES.IDX3-UBYTE, TRAIN-LABELS.IDX1-UBYTE");
  fs::remove_all(folder_);
  write_pair("emnist-letters-test-{}-idx#-ubyte", 30);
  write_pair("emnist-letters-train-{}-idx#-ubyte", 60);
  EXPECT_EQ(description(),
            "idx: emnist-letters-train-images-idx3-ubyte, emnist-letters-train-labels-idx1-ubyte");
}

TEST_F(Idx, ImagesAndLabelsArePairedByTheirCommonNameNotByTheOrderOfNames) {
  write("b-images-idx3-ubyte", images_file(30));
  write("B-LABELS.IDX1-UBYTE", labels_file(30));
  write("a-labels-idx1-ubyte", labels_file(30));
  EXPECT_EQ(description(), "idx: b-images-idx3-ubyte, B-LABELS.IDX1-UBYTE");
  fs::remove(folder_ / "B-LABELS.IDX1-UBYTE");
  write("c-labels-idx1-ubyte", labels_file(30));
  expect_refusal("no labels file of its name; expected b-labels-idx1-ubyte or b-labels-idx1-ubyte.gz");
}

TEST_F(Idx, TrainingImagesAreNotPairedWithTheOnlyLabelsOfATestSet) {
  write("train-images-idx3-ubyte", images_file(30));
  write("t10k-labels-idx1-ubyte", labels_file(30));
  expect_refusal("no labels file of its name; expected train-labels-idx1-ubyte");
}

TEST_F(Idx, ATestSetIsOnlyTrainedOnWhenItsImagesFileIsNamed) {
  for (const char* name : {"t10k", "emnist-digits-test", "MNIST.TEST"}) {
    fs::remove_all(folder_);
    write_pair(std::string(name) + "-{}-idx#-ubyte", 30);
    const std::string images = std::string(name) + "-images-idx3-ubyte";
    expect_refusal("holds a test set only (" + images + "), which is not trained on");
    expect_refusal("name its images file: " + (folder_ / images).string());
    below_ = images;
    EXPECT_EQ(description(), "idx: " + images + ", " + name + "-labels-idx1-ubyte");
    below_.clear();
  }
}

TEST_F(Idx, SeveralTrainingSetsAreListedAndOneIsChosenByItsImagesFile) {
  write_pair("emnist-digits-train-{}-idx#-ubyte", 30);
  write_pair("emnist-letters-train-{}-idx#-ubyte", 60);
  write_pair("emnist-letters-test-{}-idx#-ubyte", 30);
  expect_refusal(
      "holds several data sets: emnist-digits-train-images-idx3-ubyte, "
      "emnist-letters-train-images-idx3-ubyte; "
      "name the images file of one instead of the folder, such as " +
      (folder_ / "emnist-digits-train-images-idx3-ubyte").string());
  below_ = "emnist-letters-train-images-idx3-ubyte";
  EXPECT_EQ(description(),
            "idx: emnist-letters-train-images-idx3-ubyte, emnist-letters-train-labels-idx1-ubyte");
  below_ = "emnist-letters-train-labels-idx1-ubyte";
  expect_refusal("no IDX images file");
  below_ = "emnist-letters-train-images-idx3-ubyte.gz";
  expect_refusal("not a folder, and no images file");
}

TEST_F(Idx, APlainFileAndItsCompressedCopyAreOneDataSet) {
  write_pair("train-{}-idx#-ubyte", 30);
  write_gzip("train-images-idx3-ubyte.gz", images_file(30));
  write_gzip("train-labels-idx1-ubyte.gz", labels_file(30));
  EXPECT_EQ(description(), "idx: train-images-idx3-ubyte, train-labels-idx1-ubyte");
  write("train-images-idx3-ubyte", "<html>");
  EXPECT_EQ(description(), "idx: train-images-idx3-ubyte.gz, train-labels-idx1-ubyte");
}

TEST_F(Idx, TheRawFoldersOfTorchvisionAreFoundBelowTheirRoot) {
  write_pair("MNIST/raw/train-{}-idx#-ubyte", 60);
  write_pair("MNIST/raw/t10k-{}-idx#-ubyte", 30);
  EXPECT_EQ(description(), "idx: MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels-idx1-ubyte");
  below_ = "MNIST";
  EXPECT_EQ(description(), "idx: raw/train-images-idx3-ubyte, raw/train-labels-idx1-ubyte");
  below_ = "MNIST/raw";
  EXPECT_EQ(description(), "idx: train-images-idx3-ubyte, train-labels-idx1-ubyte");
  below_.clear();
  write_pair("FashionMNIST/raw/train-{}-idx#-ubyte", 60);
  expect_refusal(
      "several data sets: FashionMNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-images-idx3-ubyte;");
}

TEST_F(Idx, TheClassIsTheFirstOfQmnistsIntegers) {
  write("qmnist-train-images-idx3-ubyte", images_file(30));
  write("qmnist-train-labels-idx2-int", integer_labels_file(30));
  const Dataset integers = make_dataset(workload(), 0);
  EXPECT_EQ(integers.description, "idx: qmnist-train-images-idx3-ubyte, qmnist-train-labels-idx2-int");
  fs::remove(folder_ / "qmnist-train-labels-idx2-int");
  write("qmnist-train-labels-idx1-ubyte", labels_file(30));
  EXPECT_EQ(integers.digest, make_dataset(workload(), 0).digest);
  fs::remove(folder_ / "qmnist-train-labels-idx1-ubyte");
  for (std::uint32_t columns : {0u, 0xffffffffu}) {
    std::string labels = integer_labels_file(30);
    labels.replace(8, 4, word(columns));
    write("qmnist-train-labels-idx2-int", labels);
    expect_refusal("columns of labels; expected one or, as in QMNIST, eight");
  }
  std::string negative = integer_labels_file(30);
  negative.replace(12, 4, word(0xffffffff));
  write("qmnist-train-labels-idx2-int", negative);
  expect_refusal("label -1 of sample 0 is outside the workload's 3 classes");
}

TEST_F(Idx, WhatAFileIsInsteadOfIdxDataIsSaid) {
  write("train-labels-idx1-ubyte", labels_file(30));
  for (const char* page : {"<!DOCTYPE html><html>", "\xef\xbb\xbf\n <!doctype HTML>", "<HTML lang=en>"}) {
    write("train-images-idx3-ubyte", page);
    expect_refusal("train-images-idx3-ubyte: is a web page, not IDX data: download it again");
  }
  write_gzip("inner.bin", images_file(30));
  write_gzip("train-images-idx3-ubyte", read("inner.bin"));
  expect_refusal("train-images-idx3-ubyte: is gzip inside gzip: unpack it once (gunzip)");
  write("train-images-idx3-ubyte", "PK\x03\x04 and more");
  expect_refusal("is a zip archive, not IDX data: unpack it");
  write("train-images-idx3-ubyte", "version https://git-lfs.github.com/spec/v1");
  expect_refusal("is a pointer of Git LFS");
  write("train-images-idx3-ubyte", images_file(30));
  write("train-labels-idx1-ubyte", "<html>404");
  expect_refusal("train-labels-idx1-ubyte: is a web page");
}

TEST_F(Idx, ABrokenTestSetDoesNotKeepTheTrainingSetFromBeingRead) {
  write_pair("train-{}-idx#-ubyte", 60);
  write("t10k-images-idx3-ubyte", "<html>404");
  write("labels.txt", "zero one two");
  EXPECT_EQ(description(), "idx: train-images-idx3-ubyte, train-labels-idx1-ubyte");
}

TEST_F(Idx, MissingFolderAndFilesAreNamed) {
  expect_refusal("no IDX images file");
  write("train-images-idx3-ubyte", images_file(30));
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
  expect_refusal("truncated: its header promises 17179869180 bytes of data, the file holds 120");
  write_gzip("a-images", images);
  expect_refusal("bytes of data, more than a gzip file of");
}

TEST_F(Idx, ADataSetThatDoesNotFitIntoMemoryIsRefusedBeforeItIsRead) {
  const std::uint32_t rows = 128, width = rows * rows;
  const std::uint32_t count = 500000000;  // 8 TB, 41 TB as it is trained on
  std::ofstream(folder_ / "a-images", std::ios::binary)
      << word(0x803) + word(count) + word(rows) + word(rows);
  std::ofstream(folder_ / "a-labels", std::ios::binary) << word(0x801) + word(count);
  fs::resize_file(folder_ / "a-images", 16 + std::uint64_t{count} * width);  // sparse: takes no space
  fs::resize_file(folder_ / "a-labels", 8 + std::uint64_t{count});
  EXPECT_THROW(make_dataset(workload("mlp-16384x3-b5"), 0), OutOfMemoryError);
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
