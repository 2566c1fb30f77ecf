#include "bounds_counts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

}  // namespace

std::int64_t BoundsCounts::networks() const {
  std::int64_t count = 0;
  for (const NetworkRange& range : ranges) count += range.count;
  return count;
}

void BoundsCounts::add(const BoundsCounts& other) {
  if (copies != other.copies)
    throw std::invalid_argument("made with " + std::to_string(other.copies) + " copies, expected " +
                                std::to_string(copies));
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::equal(classes.begin(), classes.end(), other.classes.begin(), other.classes.end(), same_name))
    throw std::invalid_argument("has other classes");
  for (const NetworkRange& range : other.ranges)
    for (const NetworkRange& own : ranges)
      if (range.overlaps(own))
        throw std::invalid_argument("networks " + std::to_string(std::max(range.first, own.first)) +
                                    " and on of seed " + std::to_string(range.seed) + " are counted already");
  ranges.insert(ranges.end(), other.ranges.begin(), other.ranges.end());
  for (std::size_t i = 0; i < classes.size(); ++i) classes[i].second.add(other.classes[i].second);
}

std::string to_json(const BoundsCounts& counts) {
  Json ranges = Json::array();
  for (const NetworkRange& range : counts.ranges)
    ranges.push_back({{"seed", range.seed}, {"first", range.first}, {"networks", range.count}});
  std::string text =
      Json{{"networks", counts.networks()}, {"copies", counts.copies}, {"ranges", ranges}}.dump();
  text.pop_back();
  text += ",\"classes\":[";
  for (const auto& [name, of_class] : counts.classes) {
    Json one{{"class", name}};
    for (const NamedCount& named : kOfCorrect) one[named.name] = of_class.*named.count;
    one["free_steps"] = {{"passed", of_class.free_steps.passed}, {"failed", of_class.free_steps.failed}};
    one["faults"] = Json::object();
    for (const auto& [fault, found] : of_class.faults)
      for (const NamedFaultCount& named : kOfFault) one["faults"][fault][named.name] = found.*named.count;
    text += (name == counts.classes.front().first ? "\n" : ",\n") + one.dump();
  }
  return text + "\n]}\n";
}

BoundsCounts counts_from_json(std::string_view text, const std::string& where) {
  constexpr int kMostCopies = 1024;
  const nlohmann::json document = parse_json(text, true);
  const JsonReader file(document, where);
  BoundsCounts counts{.copies = static_cast<int>(file.at("copies").integer(0, kMostCopies))};
  for (const JsonReader& range : file.at("ranges").items_not_empty())
    counts.ranges.push_back(
        {range.at("seed").seed(), range.at("first").integer(0), range.at("networks").integer(0)});
  for (const JsonReader& one : file.at("classes").items_not_empty()) {
    Counts of_class;
    for (const NamedCount& named : kOfCorrect) of_class.*named.count = one.at(named.name).integer(0);
    const JsonReader free_steps = one.at("free_steps");
    of_class.free_steps = {free_steps.at("passed").integer(0), free_steps.at("failed").integer(0)};
    for (const auto& [fault, found] : one.at("faults").members())
      for (const NamedFaultCount& named : kOfFault)
        of_class.faults[fault].*named.count = found.at(named.name).integer(0);
    counts.classes.emplace_back(one.at("class").string(), of_class);
  }
  return counts;
}

}  // namespace headroom
