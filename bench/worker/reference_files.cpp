#include "worker/reference_files.h"

#include <string>

#include "worker/float_file.h"

namespace headroom {
namespace {

std::string ending(std::int64_t step) { return "-" + std::to_string(step) + ".f32"; }

}  // namespace

std::filesystem::path ReferenceFiles::start(std::int64_t step) const {
  return folder / ("start" + ending(step));
}
std::filesystem::path ReferenceFiles::update(Contract contract, std::int64_t step) const {
  return folder / ("update-" + std::string(to_string(contract)) + ending(step));
}
std::filesystem::path ReferenceFiles::copies(Contract contract, std::int64_t step) const {
  return folder / ("copies-" + std::string(to_string(contract)) + ending(step));
}

void write_copies(const std::filesystem::path& file, const Copies& copies) {
  std::vector<float> values = copies.distances;
  values.insert(values.end(), copies.scales.begin(), copies.scales.end());
  write_floats(file, values);
}

Copies read_copies(const std::filesystem::path& file, int count, std::size_t tensors) {
  const std::size_t each = static_cast<std::size_t>(count) * tensors;
  const std::vector<float> values = read_floats(file, static_cast<std::int64_t>(2 * each));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(each);
  return {count, {values.begin(), middle}, {middle, values.end()}};
}

}  // namespace headroom
