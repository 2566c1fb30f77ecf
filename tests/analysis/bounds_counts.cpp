#include "bounds_counts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "json/reader.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

struct NamedCount {
  const char* name;
  std::int64_t Counts::* count;
};
constexpr NamedCount kOfCorrect[] = {{"networks", &Counts::networks},
                                     {"passed", &Counts::passed},
                                     {"failed", &Counts::failed},
                                     {"cannot_be_checked", &Counts::cannot_be_checked}};
struct NamedFaultCount {
  const char* name;
  std::int64_t Counts::OfFault::* count;
};
constexpr NamedFaultCount kOfFault[] = {{"caught", &Counts::OfFault::caught},
                                        {"missed", &Counts::OfFault::missed},
                                        {"cannot_be_checked", &Counts::OfFault::cannot_be_checked},
                                        {"invisible", &Counts::OfFault::invisible}};

/// In order, and those that follow each other as one.
std::vector<NetworkRange> joined(std::vector<NetworkRange> ranges) {
  std::ranges::sort(ranges, {}, [](const NetworkRange& range) { return std::pair(range.seed, range.first); });
  std::vector<NetworkRange> result;
  for (const NetworkRange& range : ranges)
    if (!result.empty() && result.back().seed == range.seed &&
        result.back().first + result.back().count == range.first)
      result.back().count += range.count;
    else
      result.push_back(range);
  return result;
}

}  // namespace

std::int64_t ClassCounts::networks() const {
  std::int64_t count = 0;
  for (const NetworkRange& range : ranges) count += range.count;
  return count;
}

std::int64_t BoundsCounts::networks() const {
  std::int64_t least = classes.empty() ? 0 : classes.front().networks();
  for (const ClassCounts& one : classes) least = std::min(least, one.networks());
  return least;
}

void BoundsCounts::add(const BoundsCounts& other) {
  if (copies != other.copies)
    throw std::invalid_argument("made with " + std::to_string(other.copies) + " copies, expected " +
                                std::to_string(copies));
  BoundsCounts total = *this;
  for (const ClassCounts& one : other.classes) {
    const auto own = std::ranges::find(total.classes, one.name, &ClassCounts::name);
    if (own == total.classes.end()) {
      total.classes.push_back(one);
      continue;
    }
    for (const NetworkRange& range : one.ranges)
      for (const NetworkRange& counted : own->ranges)
        if (range.overlaps(counted))
          throw std::invalid_argument("network " + std::to_string(std::max(range.first, counted.first)) +
                                      " of seed " + std::to_string(range.seed) + " in '" + one.name +
                                      "' is counted already");
    own->ranges.insert(own->ranges.end(), one.ranges.begin(), one.ranges.end());
    own->ranges = joined(std::move(own->ranges));
    own->counts.add(one.counts);
  }
  *this = std::move(total);
}

std::string to_json(const BoundsCounts& counts) {
  std::string text = "{\"networks\":" + std::to_string(counts.networks()) +
                     ",\"copies\":" + std::to_string(counts.copies) + ",\"classes\":[";
  const char* comma = "\n";
  for (const ClassCounts& of_class : counts.classes) {
    Json one{{"class", of_class.name}, {"ranges", Json::array()}};
    for (const NetworkRange& range : of_class.ranges)
      one["ranges"].push_back({{"seed", range.seed}, {"first", range.first}, {"networks", range.count}});
    for (const NamedCount& named : kOfCorrect) one[named.name] = of_class.counts.*named.count;
    one["free_steps"] = {{"passed", of_class.counts.free_steps.passed},
                         {"failed", of_class.counts.free_steps.failed}};
    one["faults"] = Json::object();
    for (const auto& [fault, found] : of_class.counts.faults)
      for (const NamedFaultCount& named : kOfFault) one["faults"][fault][named.name] = found.*named.count;
    text += comma + one.dump();
    comma = ",\n";
  }
  return text + "\n]}\n";
}

BoundsCounts counts_from_json(std::string_view text, const std::string& where) {
  constexpr int kMostCopies = 1024;
  const nlohmann::json document = parse_json(text, true);
  const JsonReader file(document, where);
  BoundsCounts counts{.copies = static_cast<int>(file.at("copies").integer(0, kMostCopies))};
  for (const JsonReader& one : file.at("classes").items_not_empty()) {
    ClassCounts of_class{.name = one.at("class").string()};
    for (const JsonReader& range : one.at("ranges").items_not_empty())
      of_class.ranges.push_back(
          {range.at("seed").seed(), range.at("first").integer(0), range.at("networks").integer(0)});
    for (const NamedCount& named : kOfCorrect) of_class.counts.*named.count = one.at(named.name).integer(0);
    const JsonReader free_steps = one.at("free_steps");
    of_class.counts.free_steps = {free_steps.at("passed").integer(0), free_steps.at("failed").integer(0)};
    for (const auto& [fault, found] : one.at("faults").members())
      for (const NamedFaultCount& named : kOfFault)
        of_class.counts.faults[fault].*named.count = found.at(named.name).integer(0);
    counts.classes.push_back(of_class);
  }
  return counts;
}

}  // namespace headroom
