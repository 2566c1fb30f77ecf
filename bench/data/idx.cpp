// Finds and reads IDX files. zlib's gz* calls read plain files too, so both kinds take one path.
//
// Which two files belong together follows from their names, whatever the case: what is left of a name without
// 'images' or 'labels' and the words of the format is the name of the data set. What a file is follows from its
// first bytes, and from its name only where these say nothing.
// Nothing in a header is believed before it is checked: memory is only taken for bytes that the file can hold.
#include "data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>
#include <tuple>

#include "core/error.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kImagesMagic = 0x803, kLabelsMagic = 0x801;
// Labels of four bytes; QMNIST's have eight columns, the class in the first.
constexpr std::uint32_t kIntLabelsMagic = 0xc01, kIntLabelColumnsMagic = 0xc02;

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::uint32_t word_of(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) throw InputError(name() + ": cannot be read; expected an IDX file, plain or gzip");
    gzbuffer(file_.get(), 1 << 18);
  }

  /// Up to `size` bytes; fewer only at the end of the file.
  std::size_t read(std::uint8_t* bytes, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const unsigned wanted = static_cast<unsigned>(std::min<std::size_t>(size - done, 1 << 24));
      const int count = gzread(file_.get(), bytes + done, wanted);
      if (count < 0) throw InputError(name() + ": truncated or damaged gzip file; expected a whole IDX file");
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    position_ += done;
    return done;
  }

  std::uint32_t read_word() {
    std::array<std::uint8_t, 4> bytes{};
    if (read(bytes.data(), 4) != 4) throw InputError(name() + ": truncated: the file ends within its header");
    return word_of(bytes.data());
  }

  /// Throws unless the rest of the file can be `size` bytes: a plain file's length says so, a gzip file's bounds it.
  void expect_rest(std::uint64_t size) const {
    constexpr std::uint64_t kMostExpansion = 1032;  // of deflate
    std::error_code error;
    const std::uint64_t stored = fs::file_size(path_, error);
    if (error) throw InputError(name() + ": cannot be read: " + error.message());
    if (gzdirect(file_.get()) == 1) {
      if (const std::uint64_t rest = stored - std::min(stored, position_); rest < size)
        refuse_rest(size, rest);
    } else if (stored < size / kMostExpansion) {
      throw InputError(name() + ": truncated: its header promises " + std::to_string(size) +
                       " bytes of data, more than a gzip file of " + std::to_string(stored) +
                       " bytes can hold");
    }
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
      if (count < piece) refuse_rest(size, begin + count);
    }
    std::uint8_t beyond;
    if (read(&beyond, 1) != 0) {
      throw InputError(name() + ": holds more than the " + std::to_string(size) +
                       " bytes of data that its header promises");
    }
    return bytes;
  }

  std::string name() const { return path_.string(); }

 private:
  [[noreturn]] void refuse_rest(std::uint64_t promised, std::uint64_t held) const {
    throw InputError(name() + ": truncated: its header promises " + std::to_string(promised) +
                     " bytes of data, the file holds " + std::to_string(held));
  }

  fs::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::uint64_t position_ = 0;
};

enum class Purpose { kTraining, kUnknown, kTest };  // in the order in which they are taken

struct Candidate {
  fs::path path;
  std::string shown;    // path below the folder that was named
  std::string folder;   // the path's folder below it
  std::string stem;     // file name in lower case, without ".gz"
  std::string family;   // what the two names of a pair have in common
  std::string problem;  // why it cannot be used, as a whole message
  bool compressed = false, images = false;
  Purpose purpose = Purpose::kUnknown;
};

// "emnist-letters-train-images-idx3-ubyte" is of the family "emnist-letters-train".
std::string family_of(const std::string& stem) {
  constexpr std::array kFormat{"idx", "idx1", "idx2", "idx3", "ubyte", "byte", "int", "image", "label"};
  std::string family, word;
  const auto end_word = [&] {
    for (const char* part : {"images", "labels"}) {
      if (const std::size_t at = word.find(part); at != std::string::npos) word.erase(at, 6);
    }
    const bool format = std::find(kFormat.begin(), kFormat.end(), word) != kFormat.end();
    if (!word.empty() && !format) family += (family.empty() ? "" : "-") + word;
    word.clear();
  };
  for (const char c : stem) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return family;
}

Purpose purpose_of(const std::string& stem) {
  if (contains(stem, "train")) return Purpose::kTraining;
  return contains(stem, "test") || contains(stem, "t10k") ? Purpose::kTest : Purpose::kUnknown;
}

// What a file that is not IDX data is instead, or empty.
std::string foreign_kind(std::string_view bytes) {
  struct Signature {
    std::string_view begin;
    const char* what;
  };
  using namespace std::string_view_literals;
  constexpr Signature kSignatures[] = {
      {"\x1f\x8b"sv, "is gzip inside gzip: unpack it once (gunzip)"},
      {"PK\x03\x04"sv, "is a zip archive, not IDX data: unpack it"},
      {"\xfd"
       "7zXZ"sv,
       "is an xz file, not IDX data: unpack it"},
      {"BZh"sv, "is a bzip2 file, not IDX data: unpack it"},
      {"version https://git-lfs"sv, "is a pointer of Git LFS, not the data: fetch it with 'git lfs pull'"}};
  for (const Signature& signature : kSignatures) {
    if (bytes.starts_with(signature.begin)) return signature.what;
  }
  if (bytes.starts_with("\xef\xbb\xbf"sv)) bytes.remove_prefix(3);
  bytes.remove_prefix(std::min(bytes.find_first_not_of(" \t\r\n"sv), bytes.size()));
  const std::string text = lower_case(std::string(bytes));
  for (const char* tag : {"<!doctype", "<html", "<head", "<?xml", "<!--"}) {
    if (text.starts_with(tag)) return "is a web page, not IDX data: download it again";
  }
  return {};
}

/// Sets what the file is, and `problem` if its name says that it should be IDX data and its bytes that it is not.
/// False: some other file.
bool examine(Candidate& candidate) {
  const std::string& stem = candidate.stem;
  const bool named_images = contains(stem, "images") || contains(stem, "idx3");
  const bool named_labels = contains(stem, "labels") || contains(stem, "idx1") || contains(stem, "idx2");
  candidate.images = named_images;
  const std::string name = candidate.path.string();
  try {
    std::array<std::uint8_t, 64> begin{};
    const std::size_t size = IdxFile(candidate.path).read(begin.data(), begin.size());
    const std::uint32_t magic = word_of(begin.data());
    const std::string_view text(reinterpret_cast<const char*>(begin.data()), size);
    if (size < 4) {
      candidate.problem = name + ": truncated: the file ends within its header";
    } else if (magic == kImagesMagic) {
      candidate.images = true;
      return true;
    } else if (magic == kLabelsMagic || magic == kIntLabelsMagic || magic == kIntLabelColumnsMagic) {
      candidate.images = false;
      return true;
    } else if (const std::string kind = foreign_kind(text); !kind.empty()) {
      candidate.problem = name + ": " + kind;
    } else {
      candidate.problem = name + ": magic number " + hex(magic) + ", expected " +
                          hex(named_images ? kImagesMagic : kLabelsMagic) +
                          (named_images ? " (images)" : " (labels)");
    }
  } catch (const InputError& error) {
    candidate.problem = error.what();
  }
  return named_images || named_labels;
}

/// The IDX files of one folder; of a file that is there plain and compressed, the one that can be used, or the plain.
std::vector<Candidate> candidates_in(const fs::path& root, const fs::path& below) {
  std::vector<Candidate> found;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(root / below)) {
      std::error_code ignored;
      if (!entry.is_regular_file(ignored)) continue;
      Candidate candidate;
      candidate.path = entry.path();
      candidate.folder = below.string();
      candidate.shown = (below / entry.path().filename()).string();
      candidate.stem = lower_case(entry.path().filename().string());
      candidate.compressed = candidate.stem.ends_with(".gz");
      if (candidate.compressed) candidate.stem.resize(candidate.stem.size() - 3);
      candidate.family = family_of(candidate.stem);
      candidate.purpose = purpose_of(candidate.stem);
      if (examine(candidate)) found.push_back(std::move(candidate));
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError((root / below).string() + ": cannot be listed: " + error.code().message());
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& c) {
      return std::tuple(c.stem, !c.problem.empty(), c.compressed, c.shown);
    };
    return key(a) < key(b);
  });
  return found;
}

bool same_but_for_compression(const Candidate& a, const Candidate& b) {
  return a.folder == b.folder && a.stem == b.stem && a.compressed != b.compressed;
}

/// The IDX files of the folder; where it has none, those of raw and */raw below it, as torchvision lays them.
std::vector<Candidate> candidates_of(const fs::path& folder) {
  const std::vector<Candidate> here = candidates_in(folder, "");
  if (std::ranges::any_of(here, [](const Candidate& one) { return one.problem.empty(); })) return here;
  std::vector<Candidate> found;
  std::vector<fs::path> below{"raw"};
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    below.push_back(entry->path().filename() / "raw");
  }
  std::sort(below.begin() + 1, below.end());
  for (const fs::path& path : below) {
    std::error_code ignored;
    if (!fs::is_directory(folder / path, ignored)) continue;
    for (Candidate& candidate : candidates_in(folder, path)) found.push_back(std::move(candidate));
  }
  return found.empty() ? here : found;
}

std::vector<Candidate> without_copies(std::vector<Candidate> candidates) {
  candidates.erase(std::unique(candidates.begin(), candidates.end(), same_but_for_compression),
                   candidates.end());
  return candidates;
}

// What the labels file of an images file is usually called, without ".gz".
std::string labels_stem(std::string images_stem) {
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"images", "labels"}, {"idx3", "idx1"}}) {
    if (const std::size_t at = images_stem.find(from); at != std::string::npos) {
      images_stem.replace(at, from.size(), to);
    }
  }
  return images_stem;
}

std::string listed(const std::vector<Candidate>& candidates) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(candidates.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + candidates[i].shown;
  }
  if (candidates.size() > kMost) text += " and " + std::to_string(candidates.size() - kMost) + " more";
  return text;
}

std::vector<Candidate> labels_of_family(const Candidate& images, const std::vector<Candidate>& labels) {
  std::vector<Candidate> found;
  for (const Candidate& candidate : labels) {
    if (candidate.folder == images.folder && candidate.family == images.family) found.push_back(candidate);
  }
  return found;
}

/// The images file to train on: of a training set if there is one, never of a test set.
Candidate choose_images(const fs::path& folder, const std::vector<Candidate>& images,
                        const std::vector<Candidate>& labels) {
  const auto purpose = [](const Candidate& candidate) { return candidate.purpose; };
  const Purpose best = std::ranges::min(images, {}, purpose).purpose;
  std::vector<Candidate> meant, paired;
  std::ranges::copy_if(images, std::back_inserter(meant), [&](auto& one) { return one.purpose == best; });
  std::ranges::copy_if(meant, std::back_inserter(paired),
                       [&](auto& one) { return !labels_of_family(one, labels).empty(); });
  if (!paired.empty()) meant = paired;
  const std::string choice = (folder / meant.front().shown).string();
  if (best == Purpose::kTest) {
    throw InputError(
        folder.string() + ": holds a test set only (" + listed(meant) +
        "), which is not trained on; expected a training set, such as train-images-idx3-ubyte.gz "
        "with its labels; to train on the test set all the same, name its images file: " +
        choice);
  }
  if (meant.size() > 1) {
    throw InputError(folder.string() + ": holds several data sets: " + listed(meant) +
                     "; name the images file of one instead of the folder, such as " + choice);
  }
  return meant.front();
}

Candidate choose_labels(const Candidate& images, const std::vector<Candidate>& all_images,
                        const std::vector<Candidate>& all_labels) {
  const std::string wanted = labels_stem(images.stem);
  const std::vector<Candidate> family = labels_of_family(images, all_labels);
  for (const Candidate& candidate : family) {
    if (candidate.stem == wanted) return candidate;
  }
  if (family.size() == 1) return family.front();
  if (family.size() > 1) {
    throw InputError(images.path.string() + ": several labels files have its name: " + listed(family) +
                     "; expected one, called " + wanted);
  }
  // Two files of any names, unless they say that they do not belong together.
  if (all_images.size() == 1 && all_labels.size() == 1 && images.purpose == all_labels.front().purpose)
    return all_labels.front();
  throw InputError(images.path.string() + ": no labels file of its name; expected " + wanted + " or " +
                   wanted + ".gz beside it");
}

struct Pair {
  Candidate images, labels;
};

Pair find_pair(const std::string& place) {
  std::error_code ignored;
  const fs::path path(place);
  const bool folder_named = fs::is_directory(path, ignored);
  if (!folder_named && !fs::is_regular_file(path, ignored)) {
    throw InputError(place +
                     ": not a folder, and no images file; expected a folder that holds IDX files such as "
                     "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz");
  }
  const fs::path folder = folder_named ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<Candidate> images, labels;
  for (Candidate& candidate : folder_named ? candidates_of(folder) : candidates_in(folder, "")) {
    (candidate.images ? images : labels).push_back(std::move(candidate));
  }
  const auto named =
      std::ranges::find(images, path.filename(), [](auto& one) { return one.path.filename(); });
  if (images.empty() || (!folder_named && named == images.end())) {
    throw InputError(place + ": no IDX images file (magic " + hex(kImagesMagic) +
                     (folder_named ? ") in it, nor in the folders raw and */raw below it" : ")") +
                     "; expected one such as train-images-idx3-ubyte.gz");
  }
  const Candidate by_name = folder_named ? Candidate{} : *named;
  images = without_copies(std::move(images));
  labels = without_copies(std::move(labels));
  const Candidate chosen = folder_named ? choose_images(folder, images, labels) : by_name;
  if (!chosen.problem.empty()) throw InputError(chosen.problem);
  if (labels.empty()) {
    throw InputError(place + ": no IDX labels file (magic " + hex(kLabelsMagic) + "); expected one such as " +
                     labels_stem(chosen.stem) + ".gz");
  }
  const Pair pair{chosen, choose_labels(chosen, images, labels)};
  if (!pair.labels.problem.empty()) throw InputError(pair.labels.problem);
  return pair;
}

/// A labels file's header, and how the class is found in what follows.
struct LabelLayout {
  std::uint64_t count = 0, bytes_a_sample = 1;
  bool integers = false;  // four bytes, the highest first
};

LabelLayout read_label_header(IdxFile& file) {
  LabelLayout layout;
  const std::uint32_t magic = file.read_word();
  layout.count = file.read_word();
  if (magic == kLabelsMagic) return layout;
  layout.integers = true;
  constexpr std::uint32_t kMostColumns = 1024;
  const std::uint32_t columns = magic == kIntLabelColumnsMagic ? file.read_word() : 1;
  if (columns < 1 || columns > kMostColumns) {
    throw InputError(file.name() + ": " + std::to_string(columns) +
                     " columns of labels; expected one or, as in QMNIST, eight with the class in the first");
  }
  layout.bytes_a_sample = std::uint64_t{4} * columns;
  return layout;
}

}  // namespace

IdxSamples read_idx(const std::string& place, int feature_count, int classes,
                    const std::function<void(std::int64_t samples)>& expect_to_fit) {
  const Pair pair = find_pair(place);
  IdxSamples result;
  result.images_name = pair.images.shown;
  result.labels_name = pair.labels.shown;

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
  const LabelLayout layout = read_label_header(labels);
  if (layout.count != count) {
    throw InputError(labels.name() + ": " + std::to_string(layout.count) + " labels for " +
                     std::to_string(count) + " images in " + result.images_name +
                     "; the counts must be equal");
  }
  const std::uint64_t image_bytes = count * static_cast<std::uint64_t>(feature_count);
  images.expect_rest(image_bytes);
  labels.expect_rest(count * layout.bytes_a_sample);
  result.samples = static_cast<std::int64_t>(count);
  expect_to_fit(result.samples);
  result.pixels = images.read_rest(image_bytes);
  const std::vector<std::uint8_t> label_bytes = labels.read_rest(count * layout.bytes_a_sample);
  result.labels.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint8_t* bytes = &label_bytes[i * layout.bytes_a_sample];
    const std::int32_t label = layout.integers ? static_cast<std::int32_t>(word_of(bytes)) : bytes[0];
    if (label < 0 || label >= classes) {
      throw InputError(labels.name() + ": label " + std::to_string(label) + " of sample " +
                       std::to_string(i) + " is outside the workload's " + std::to_string(classes) +
                       " classes; expected 0 to " + std::to_string(classes - 1));
    }
    result.labels[i] = label;
  }
  return result;
}

}  // namespace headroom
