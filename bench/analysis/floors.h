// An estimate of the least time that a step of a workload can take on a device, from what was measured of the device.
//
// A floor is the largest of three times, each a bound of its own: bytes over bandwidth, operations over rate, and
// exchanges between SMs; on several devices of four, with what crosses their link. docs/floors.md has the formulas, their sources and what they take for granted. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/record.h"
#include "core/workload.h"

namespace headroom {

/// What a floor needs to know of the device beside its calibration.
struct FloorDevice {
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
};

/// Bytes that one step moves between memory and chip at the least.
struct Traffic {
  double read = 0, written = 0;
};
/// `samples`: of the data set, which lies in memory but for what the L2 can hold. Weights and the optimizer's slots move unless
/// they fit on the chip.
Traffic least_traffic(const Workload& workload, Precision precision, std::int64_t samples,
                      double on_chip_bytes, std::int64_t l2_bytes);
/// Reads that have a write beside them go at the rate of a copy, the others at that of reading.
double traffic_seconds(const Traffic& traffic, double copy_rate, double read_rate);

/// Values that pass between the SMs in each exchange of a step whose layers are spread over SMs in pairs (columns, then
/// rows): an all-reduce after each pair forward, and before each pair but the first backward.
std::vector<double> exchanged_values(const Workload& workload);

/// Bytes that each device of a workload of several must get of all others together, at the least: of each layer either sums of
/// gradients in fp32, or the activations and gradients of the others' samples that its weight gradient is made of.
double link_bytes(const Workload& workload, Precision precision);

/// Of several devices: of each the bytes, operations and exchanges of its own batch, and the link. A device that trained the joined
/// batch by itself would exchange nothing: its floor is one for several devices too.
/// nullopt if the calibration lacks a rate that this precision needs. Throws std::invalid_argument for a rate or a device
/// that is none.
std::optional<Floor> workload_floor(const Workload& workload, Precision precision, std::int64_t samples,
                                    const Calibration& calibration, const FloorDevice& device);
/// Of rates that workload_floor() needs the first that is missing; empty if all are there.
std::string missing_rate(Precision precision, const Calibration& calibration, int devices = 1);

/// Sets fraction_of_floor of each record that has a time and is no reference.
void set_fractions(std::vector<Record>& records, const std::map<Precision, Floor>& floors);

/// Such a record is a defect of the floor (or of the calibration), not a success.
bool is_faster_than_floor(const Record& record);
/// What to say about it, in a line.
std::string floor_defect(const Record& record);

}  // namespace headroom
