// Reads IDX files. zlib's gz* calls read plain files too, so both kinds take one path.
//
// Nothing in a header is believed before it is checked: memory is only taken for bytes that the file really
// holds.
#include "core/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <tuple>

#include "core/error.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kImagesMagic = 0x803, kLabelsMagic = 0x801;

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : name_(path.string()), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) throw InputError(name_ + ": cannot be read; expected an IDX file, plain or gzip");
    gzbuffer(file_.get(), 1 << 18);
  }

  /// Up to `size` bytes; fewer only at the end of the file.
  std::size_t read(std::uint8_t* bytes, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const unsigned wanted = static_cast<unsigned>(std::min<std::size_t>(size - done, 1 << 24));
      const int count = gzread(file_.get(), bytes + done, wanted);
      if (count < 0) throw InputError(name_ + ": truncated or damaged gzip file; expected a whole IDX file");
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    return done;
  }

  std::uint32_t read_word() {
    std::array<std::uint8_t, 4> bytes{};
    if (read(bytes.data(), 4) != 4) throw InputError(name_ + ": truncated: the file ends within its header");
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
           bytes[3];
  }

  /// The rest of the file, which must be exactly `size` bytes.
  std::vector<std::uint8_t> read_rest(std::uint64_t size) {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 26;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < size) {
      const std::size_t begin = bytes.size();
      const std::size_t piece = static_cast<std::size_t>(std::min(kPiece, size - begin));
      bytes.resize(begin + piece);
      const std::size_t count = read(bytes.data() + begin, piece);
      if (count < piece) {
        throw InputError(name_ + ": truncated: its header promises " + std::to_string(size) +
                         " bytes of data, the file holds " + std::to_string(begin + count));
      }
    }
    std::uint8_t beyond;
    if (read(&beyond, 1) != 0) {
      throw InputError(name_ + ": holds more than the " + std::to_string(size) +
                       " bytes of data that its header promises");
    }
    return bytes;
  }

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

struct Candidate {
  fs::path path;
  std::string file_name, stem;  // stem: file name without ".gz"
  bool compressed = false;
};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// What the labels file that belongs to an images file is called, without ".gz".
std::string labels_stem(std::string images_stem) {
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"images", "labels"}, {"idx3", "idx1"}}) {
    if (const std::size_t at = images_stem.find(from); at != std::string::npos) {
      images_stem.replace(at, from.size(), to);
    }
  }
  return images_stem;
}

struct Pair {
  Candidate images, labels;
};

Pair find_pair(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw InputError(folder +
                     ": not a folder; expected one that holds IDX files such as train-images-idx3-ubyte.gz "
                     "and train-labels-idx1-ubyte.gz");
  }
  std::vector<Candidate> images, labels;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    Candidate candidate{.path = entry.path(), .file_name = entry.path().filename().string(), .stem = {}};
    candidate.compressed = entry.path().extension() == ".gz";
    candidate.stem = candidate.compressed ? entry.path().stem().string() : candidate.file_name;
    const bool named_images = contains(candidate.stem, "images") || contains(candidate.stem, "idx3");
    const bool named_labels = contains(candidate.stem, "labels") || contains(candidate.stem, "idx1");
    std::uint32_t magic = 0;
    try {
      magic = IdxFile(entry.path()).read_word();
    } catch (const InputError&) {
      if (named_images || named_labels) throw;
      continue;  // some other file, such as an empty one
    }
    if (magic == kImagesMagic) {
      images.push_back(std::move(candidate));
    } else if (magic == kLabelsMagic) {
      labels.push_back(std::move(candidate));
    } else if (named_images || named_labels) {
      throw InputError(candidate.path.string() + ": magic number " + hex(magic) + ", expected " +
                       hex(named_images ? kImagesMagic : kLabelsMagic) +
                       (named_images ? " (images)" : " (labels)"));
    }
  }
  if (error) throw InputError(folder + ": cannot be listed: " + error.message());
  if (images.empty()) {
    throw InputError(folder + ": no IDX images file (magic " + hex(kImagesMagic) +
                     "); expected one such as train-images-idx3-ubyte.gz");
  }
  if (labels.empty()) {
    throw InputError(folder + ": no IDX labels file (magic " + hex(kLabelsMagic) +
                     "); expected one such as train-labels-idx1-ubyte.gz");
  }
  const auto order = [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& c) {
      return std::tuple(c.stem.rfind("train", 0) != 0, c.stem, c.compressed);
    };
    return key(a) < key(b);
  };
  std::sort(images.begin(), images.end(), order);
  std::sort(labels.begin(), labels.end(), order);
  const std::string wanted = labels_stem(images[0].stem);
  for (const Candidate& candidate : labels) {
    if (candidate.stem == wanted) return {images[0], candidate};
  }
  if (images.size() == 1 && labels.size() == 1) return {images[0], labels[0]};
  throw InputError(images[0].path.string() + ": no labels file of its name; expected " + wanted + " or " +
                   wanted + ".gz beside it");
}

}  // namespace

IdxSamples read_idx(const std::string& folder, int feature_count, int classes) {
  const Pair pair = find_pair(folder);
  IdxSamples result;
  result.images_name = pair.images.file_name;
  result.labels_name = pair.labels.file_name;

  IdxFile images(pair.images.path);
  images.read_word();  // the magic number, checked above
  const std::uint64_t count = images.read_word(), rows = images.read_word(), columns = images.read_word();
  if (rows * columns != static_cast<std::uint64_t>(feature_count)) {
    throw InputError(images.name() + ": images of " + std::to_string(rows) + "x" + std::to_string(columns) +
                     " = " + std::to_string(rows * columns) + " pixels, but the workload's input width is " +
                     std::to_string(feature_count) + "; the two must be equal");
  }
  if (count == 0) throw InputError(images.name() + ": holds no images; expected at least one");

  IdxFile labels(pair.labels.path);
  labels.read_word();
  if (const std::uint64_t label_count = labels.read_word(); label_count != count) {
    throw InputError(labels.name() + ": " + std::to_string(label_count) + " labels for " +
                     std::to_string(count) + " images in " + result.images_name +
                     "; the counts must be equal");
  }
  result.samples = static_cast<std::int64_t>(count);
  result.pixels = images.read_rest(count * static_cast<std::uint64_t>(feature_count));
  result.labels = labels.read_rest(count);
  for (std::size_t i = 0; i < result.labels.size(); ++i) {
    if (result.labels[i] >= classes) {
      throw InputError(labels.name() + ": label " + std::to_string(result.labels[i]) + " of sample " +
                       std::to_string(i) + " is outside the workload's " + std::to_string(classes) +
                       " classes; expected 0 to " + std::to_string(classes - 1));
    }
  }
  return result;
}

}  // namespace headroom
