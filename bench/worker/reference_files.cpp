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
  values.insert(values.end(), copies.decays.begin(), copies.decays.end());
  write_floats(file, values);
}

Copies read_copies(const std::filesystem::path& file, int count, const Workload& workload) {
  const auto each = static_cast<std::int64_t>(compared_tensors(workload)) * count;
  const std::vector<float> values = read_floats(file, (workload.optimizer.slots() == 1 ? 3 : 2) * each);
  const auto scales = values.begin() + each, decays = scales + each;
  return {count, {values.begin(), scales}, {scales, decays}, {decays, values.end()}};
}

}  // namespace headroom
