// Workload names, limits and sizes.
#include "core/workload.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/error.h"

namespace headroom {
namespace {

constexpr std::string_view kRightName = "mlp-784x128x10-b32";

// A positive decimal number without sign or leading zero, as default_name() writes it.
std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') return std::nullopt;
  if (text.front() == '0' && text.size() > 1) return std::nullopt;
  return value;
}

InputError bad_name(std::string_view name, const std::string& why) {
  return InputError("workload '" + std::string(name) + "': " + why + "; a right name is " +
                    std::string(kRightName) + " (input width, hidden widths, classes, batch size)");
}

}  // namespace

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kFp16:
      return "fp16";
    case Precision::kBf16:
      return "bf16";
  }
  throw std::logic_error("to_string: not a Precision");
}

Precision parse_precision(std::string_view name) {
  std::vector<std::string> names;
  for (Precision precision : kAllPrecisions) {
    if (to_string(precision) == name) return precision;
    names.emplace_back(to_string(precision));
  }
  throw InputError("precision '" + std::string(name) + "': did you mean '" + nearest_name(name, names) +
                   "'? The precisions are fp32, tf32, fp16 and bf16");
}

double loss_scale(Precision precision, int batch_size) {
  if (precision != Precision::kFp16) return 1;
  return 16.0 * static_cast<double>(std::bit_ceil(static_cast<unsigned>(batch_size)));
}

std::int64_t Workload::parameter_count() const {
  std::int64_t count = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    count += (std::int64_t{widths[layer]} + 1) * widths[layer + 1];
  }
  return count;
}

double Workload::flops_per_step() const {
  double operations = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    const double product = 2.0 * batch_size * widths[layer] * widths[layer + 1];
    operations += product * (layer == 0 ? 2 : 3);
  }
  return operations;
}

std::string default_name(const std::vector<int>& widths, int batch_size) {
  std::string name = "mlp-";
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) name += 'x';
    name += std::to_string(widths[i]);
  }
  return name + "-b" + std::to_string(batch_size);
}

Workload parse_workload_name(std::string_view name) {
  constexpr std::string_view kPrefix = "mlp-";
  if (name.substr(0, kPrefix.size()) != kPrefix) throw bad_name(name, "does not begin with 'mlp-'");
  const std::string_view rest = name.substr(kPrefix.size());
  const std::size_t dash = rest.find("-b");
  if (dash == std::string_view::npos) throw bad_name(name, "has no batch size '-bN'");

  Workload workload;
  workload.name = std::string(name);
  const std::string_view batch = rest.substr(dash + 2);
  const std::optional<int> batch_size = batch.empty() ? std::nullopt : parse_number(batch);
  if (!batch_size) throw bad_name(name, "'" + std::string(batch) + "' is not a batch size");
  workload.batch_size = *batch_size;

  std::string_view widths = rest.substr(0, dash);
  for (bool more = true; more;) {
    const std::size_t cross = widths.find('x');
    const std::string_view text = widths.substr(0, cross);
    const std::optional<int> width = text.empty() ? std::nullopt : parse_number(text);
    if (!width) throw bad_name(name, "'" + std::string(text) + "' is not a width");
    workload.widths.push_back(*width);
    more = cross != std::string_view::npos;
    if (more) widths.remove_prefix(cross + 1);
  }
  validate(workload);
  return workload;
}

void validate(const Workload& workload) {
  const int layers = workload.layers();
  if (layers < 1 || layers > kMaxLayers) {
    throw bad_name(workload.name, "has " + std::to_string(std::max(layers, 0)) + " layers, must have 1 to " +
                                      std::to_string(kMaxLayers));
  }
  for (int width : workload.widths) {
    if (width < 1 || width > kMaxWidth) {
      throw bad_name(workload.name,
                     "width " + std::to_string(width) + " is not between 1 and " + std::to_string(kMaxWidth));
    }
  }
  if (workload.batch_size < 1) {
    throw bad_name(workload.name, "batch size " + std::to_string(workload.batch_size) + " is not 1 or more");
  }
  if (!std::isfinite(workload.optimizer.learning_rate) || workload.optimizer.learning_rate <= 0) {
    throw InputError("workload '" + workload.name + "': learning rate " +
                     std::to_string(workload.optimizer.learning_rate) +
                     " is not a positive number, such as 0.003");
  }
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    // Levenshtein distance, one row of the table at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replaced = diagonal + (name[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (nearest.empty() || row.back() < nearest_distance) {
      nearest = candidate;
      nearest_distance = row.back();
    }
  }
  return nearest;
}

}  // namespace headroom
