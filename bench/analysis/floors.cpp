#include "analysis/floors.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "analysis/speedup.h"

namespace headroom {
namespace {

// Bytes that a weight takes wherever it is kept: an fp32 master, or its exact split into two 16-bit halves.
constexpr double kMasterBytes = 4;
// Exchanges of so many values and more cost what the gather of a [32 x 128] matrix costs.
constexpr double kGatheredValues = 32 * 128;

bool is_16_bit(Precision precision) { return precision == Precision::kFp16 || precision == Precision::kBf16; }
double input_bytes(Precision precision) { return is_16_bit(precision) ? 2 : 4; }

std::string matrix_rate(Precision precision) { return "matrix_" + std::string(to_string(precision)); }

std::optional<double> rate(const Calibration& calibration, const std::string& name) {
  const auto found = calibration.find(name);
  if (found == calibration.end()) return std::nullopt;
  if (!std::isfinite(found->second.value) || found->second.value <= 0) {
    throw std::invalid_argument("calibration: " + name + " is " + std::to_string(found->second.value) +
                                ", expected a positive number");
  }
  return found->second.value;
}

// The smallest of those that are there; nullopt if none is.
std::optional<double> least(const Calibration& calibration, std::initializer_list<const char*> names) {
  std::optional<double> smallest;
  for (const char* name : names) {
    if (const auto value = rate(calibration, name)) smallest = std::min(smallest.value_or(*value), *value);
  }
  return smallest;
}

// Operations per second in this precision: the best that was seen.
double operation_rate(Precision precision, const Calibration& calibration) {
  const double products = rate(calibration, matrix_rate(precision)).value_or(0);
  return precision == Precision::kFp32 ? std::max(products, rate(calibration, "fp32").value_or(0)) : products;
}

// Exchanges one after the other, or none (everything on one SM), or a single one (samples spread over SMs, which then
// hand each other all gradients and new weights): the least of the three.
double exchange_seconds(const Workload& workload, Precision precision, double flops_per_second,
                        const Calibration& calibration, int sm_count) {
  const double small = least(calibration, {"remote_read", "chip_gather_8"}).value();
  const double large = least(calibration, {"cluster_gather_128"}).value_or(small);
  double layers = 0;
  for (const double values : exchanged_values(workload)) layers += values >= kGatheredValues ? large : small;
  const double alone = workload.flops_per_step() / (flops_per_second / sm_count);
  // At least half of the gradients (fp32) and half of the weights, as a product reads them, come from others.
  const double shared_bytes =
      static_cast<double>(workload.parameter_count()) * (4 + input_bytes(precision)) / 2;
  const double samples = small + shared_bytes / rate(calibration, "one_sm_read").value();
  return std::min({layers, alone, samples});
}

}  // namespace

Traffic least_traffic(const Workload& workload, Precision precision, std::int64_t samples,
                      double on_chip_bytes, std::int64_t l2_bytes) {
  const double l2 = static_cast<double>(l2_bytes);
  // The data set is walked from end to end again and again: of each batch that part can still be in the L2. Targets are fp32
  // in every precision; labels, of which a byte would do, count nothing.
  const double targets = workload.loss == Loss::kCrossEntropy ? 0 : 4.0 * workload.outputs();
  const double sample_bytes = static_cast<double>(workload.inputs()) * input_bytes(precision) + targets;
  const double data_bytes = static_cast<double>(samples) * sample_bytes;
  const double batch_bytes = static_cast<double>(workload.batch_size) * sample_bytes;
  constexpr double kLossBytes = 4;
  Traffic traffic{batch_bytes * std::max(0.0, 1 - l2 / data_bytes), kLossBytes};

  const double parameters = static_cast<double>(workload.parameter_count());
  const double slots = parameters * workload.optimizer.slots();
  if ((parameters + slots) * kMasterBytes <= on_chip_bytes) return traffic;
  double l2_values = l2 / kMasterBytes;
  const auto left = [&l2_values](double values) {  // of these, what the L2 does not hold
    const double held = std::min(values, l2_values);
    l2_values -= held;
    return values - held;
  };
  if (parameters * kMasterBytes <= on_chip_bytes) {
    // Beside the weights a part of the slots is on the chip too.
    l2_values += on_chip_bytes / kMasterBytes - parameters;
    const double moved = left(slots);
    traffic.read += moved * kMasterBytes;
    traffic.written += moved * kMasterBytes;
    return traffic;
  }
  const double first = static_cast<double>(workload.model.widths[1]) * (workload.inputs() + 1.0);
  // Those first that are read twice.
  const double others_moved = left(parameters - first), first_and_slots_moved = left(first + slots);
  // Forward reads what enters a product: of a split bf16 weight only its high half. Backward reads and writes the
  // whole master, and the slots with it. The first layer's forward product can use the weights that its update has just
  // made.
  const double forward = precision == Precision::kBf16 ? 2 : 4;
  traffic.read += others_moved * (forward + kMasterBytes) + first_and_slots_moved * kMasterBytes;
  traffic.written += (others_moved + first_and_slots_moved) * kMasterBytes;
  return traffic;
}

double traffic_seconds(const Traffic& traffic, double copy_rate, double read_rate) {
  const double paired = std::min(traffic.read, traffic.written);
  const double reads = traffic.read - paired, writes = traffic.written - paired;
  return (2 * paired + writes) / copy_rate + reads / std::max(copy_rate, read_rate);
}

std::vector<double> exchanged_values(const Workload& workload) {
  const double batch = workload.batch_size;
  // Of a single layer only the softmax needs what other SMs have summed.
  if (workload.layers() == 1 && workload.loss != Loss::kCrossEntropy) return {};
  if (workload.layers() == 1) return {batch * workload.outputs()};
  std::vector<double> values;
  for (int pair = 0; pair < workload.layers() / 2; ++pair) {
    const auto input = static_cast<std::size_t>(2 * pair);
    values.push_back(batch * workload.model.widths[input + 2]);
    if (pair > 0) values.push_back(batch * workload.model.widths[input]);
  }
  return values;
}

double link_bytes(const Workload& workload, Precision precision) {
  const double others = workload.devices - 1, value_bytes = input_bytes(precision);
  double bytes = 0;
  for (int layer = 0; layer < workload.layers(); ++layer) {
    const double in = workload.model.widths[layer], out = workload.model.widths[layer + 1];
    // A device's share of the sums, and the sums of the others'.
    const double sums = 4 * (in + 1) * out * 2 * others / workload.devices;
    // The data set can lie on every device.
    const double rows = value_bytes * others * workload.batch_size * ((layer > 0 ? in : 0) + out);
    bytes += std::min(sums, rows);
  }
  return bytes;
}

std::string missing_rate(Precision precision, const Calibration& calibration, int devices) {
  for (const std::string& name : {std::string("copy"), std::string("read"), std::string("on_chip"),
                                  std::string("one_sm_read"), matrix_rate(precision)}) {
    if (calibration.find(name) == calibration.end()) return name;
  }
  if (devices > 1) {
    for (const char* name : {"link_store", "link_round_trip"})
      if (calibration.find(name) == calibration.end()) return name;
  }
  return least(calibration, {"remote_read", "chip_gather_8"}) ? "" : "chip_gather_8";
}

namespace {

void set_largest(Floor& floor) {
  floor.seconds = floor.bytes_seconds;
  floor.bound = "bytes";
  for (const auto& [seconds, bound] :
       {std::pair(floor.operations_seconds, "operations"), std::pair(floor.exchanges_seconds, "exchanges"),
        std::pair(floor.link_seconds, "link")}) {
    if (!(seconds > floor.seconds)) continue;
    floor.seconds = seconds;
    floor.bound = bound;
  }
}

Floor floor_of_several(const Workload& workload, Precision precision, std::int64_t samples,
                       const Calibration& calibration, const FloorDevice& device) {
  const double one_way = *rate(calibration, "link_round_trip") / 2;
  Floor floor =
      workload_floor(workload.of_a_rank(), precision, samples / workload.devices, calibration, device)
          .value();
  // Some exchange of a step has to wait for the other device.
  floor.exchanges_seconds += one_way;
  floor.link_seconds = link_bytes(workload, precision) / *rate(calibration, "link_store") + one_way;
  set_largest(floor);
  Floor alone = workload_floor(workload.joined(), precision, samples, calibration, device).value();
  alone.link_seconds = floor.link_seconds;
  return alone.seconds < floor.seconds ? alone : floor;
}

}  // namespace

std::optional<Floor> workload_floor(const Workload& workload, Precision precision, std::int64_t samples,
                                    const Calibration& calibration, const FloorDevice& device) {
  if (device.sm_count < 1 || device.l2_bytes < 0 || samples < workload.joined_batch_size()) {
    throw std::invalid_argument("workload_floor: " + std::to_string(device.sm_count) + " SMs, " +
                                std::to_string(device.l2_bytes) + " bytes of L2, " + std::to_string(samples) +
                                " samples: expected an SM or more, no negative size, a batch or more");
  }
  if (!missing_rate(precision, calibration, workload.devices).empty()) return std::nullopt;
  if (workload.devices > 1) return floor_of_several(workload, precision, samples, calibration, device);
  const double flops_per_second = operation_rate(precision, calibration);
  Floor floor;
  floor.bytes_seconds = traffic_seconds(
      least_traffic(workload, precision, samples, *rate(calibration, "on_chip"), device.l2_bytes),
      *rate(calibration, "copy"), *rate(calibration, "read"));
  floor.operations_seconds = workload.flops_per_step() / flops_per_second;
  floor.exchanges_seconds =
      exchange_seconds(workload, precision, flops_per_second, calibration, device.sm_count);
  set_largest(floor);
  return floor;
}

void set_fractions(std::vector<Record>& records, const std::map<Precision, Floor>& floors) {
  for (Record& record : records) {
    const auto floor = floors.find(record.precision);
    if (floor == floors.end() || is_reference(record) || record.outcome != Outcome::kOk ||
        !record.step_seconds || !(record.step_seconds->median > 0)) {
      continue;
    }
    record.fraction_of_floor = floor->second.seconds / record.step_seconds->median;
  }
}

bool is_faster_than_floor(const Record& record) {
  return record.fraction_of_floor && !(*record.fraction_of_floor <= 1);
}

std::string floor_defect(const Record& record) {
  char ratio[40];
  std::snprintf(ratio, sizeof ratio, "%.3f", record.fraction_of_floor.value());
  return "DEFECT: " + record.backend + " trains " + record.workload + " in " +
         std::string(to_string(record.precision)) + " in less than its floor, which is " + ratio +
         " times the measured step: the floor's formula or the calibration is wrong (docs/floors.md)";
}

}  // namespace headroom
