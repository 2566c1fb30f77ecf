// Counts how often the step check is right, over random networks of every class (bounds_simulation.h), and writes the counts as JSON.
//
//   headroom-simulate-bounds [--networks N] [--class REGEX] [--seed S] [--json FILE] [--widths 784-256-10 --batch B] [--tell]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <regex>
#include <sstream>

#include "bounds_simulation.h"
#include "core/parallel.h"

namespace {

using namespace headroom;

struct Options {
  SimulatedNetworks networks{.count = 100};
  std::string classes = ".*", json;
};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr,
               "headroom-simulate-bounds: %s\nusage: headroom-simulate-bounds [--networks N] [--class REGEX] "
               "[--seed S] "
               "[--json FILE] [--widths IN-HIDDEN-...-OUT --batch B] [--spreads X] [--tell]\n",
               what.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv, std::mutex& mutex) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--tell") {
      options.networks.tell = [&mutex](const std::string& text) {
        const std::lock_guard lock(mutex);
        std::fprintf(stderr, "%s\n", text.c_str());
      };
      continue;
    }
    if (i + 1 == argc) refuse(name + ": expected a value");
    const std::string value = argv[++i];
    if (name == "--networks") {
      options.networks.count = std::atoll(value.c_str());
    } else if (name == "--class") {
      options.classes = value;
    } else if (name == "--seed") {
      options.networks.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--spreads") {
      options.networks.rule.spreads = std::atof(value.c_str());
    } else if (name == "--batch") {
      options.networks.batch_size = std::atoi(value.c_str());
    } else if (name == "--widths") {
      std::stringstream widths(value);
      for (std::string width; std::getline(widths, width, '-');)
        options.networks.widths.push_back(std::atoi(width.c_str()));
    } else {
      refuse("no option is called " + name);
    }
  }
  if (options.networks.count < 1) refuse("--networks: expected a number over 0");
  return options;
}

/// Right judgements of a thousand, of those that were judged.
double per_thousand(std::int64_t right, std::int64_t wrong) {
  return right + wrong == 0 ? 1000 : 1000.0 * static_cast<double>(right) / static_cast<double>(right + wrong);
}

std::string to_json(const std::string& name, const Counts& counts) {
  std::ostringstream out;
  out << "{\"class\": \"" << name << "\", \"networks\": " << counts.networks
      << ", \"passed\": " << counts.passed << ", \"failed\": " << counts.failed
      << ", \"cannot_be_checked\": " << counts.cannot_be_checked << ", \"faults\": {";
  const char* comma = "";
  for (const auto& [fault, count] : counts.faults) {
    out << comma << "\"" << fault << "\": {\"caught\": " << count.caught << ", \"missed\": " << count.missed
        << ", \"cannot_be_checked\": " << count.cannot_be_checked << ", \"invisible\": " << count.invisible
        << "}";
    comma = ", ";
  }
  out << "}}";
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  std::mutex mutex;
  const Options options = parse(argc, argv, mutex);
  const std::regex pattern(options.classes);
  std::vector<SimulatedClass> classes;
  for (const SimulatedClass& one : all_classes())
    if (std::regex_search(one.name(), pattern)) classes.push_back(one);
  if (classes.empty()) refuse("--class " + options.classes + ": no class matches");

  const auto start = std::chrono::steady_clock::now();
  std::vector<Counts> counts(classes.size());
  const std::int64_t count = options.networks.count;
  parallel_for(count * std::ssize(classes), 1, [&](std::int64_t item, std::int64_t) {
    const std::size_t which = static_cast<std::size_t>(item / count);
    SimulatedNetworks one = options.networks;
    one.first = item % count;
    one.count = 1;
    const Counts found = simulate(classes[which], one);
    const std::lock_guard lock(mutex);
    counts[which].add(found);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  int misses = 0;
  Counts total;
  std::string json;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const Counts& one = counts[i];
    total.add(one);
    json += (json.empty() ? "" : ",\n ") + to_json(classes[i].name(), one);
    std::string text;
    char part[200];
    if (per_thousand(one.passed, one.failed) < 999) {
      std::snprintf(part, sizeof part, " %lld of %lld correct failed;", static_cast<long long>(one.failed),
                    static_cast<long long>(one.failed + one.passed));
      text += part;
    }
    for (const auto& [fault, found] : one.faults)
      if (per_thousand(found.caught, found.missed) < 999) {
        std::snprintf(part, sizeof part, " %s: %lld of %lld missed;", fault.c_str(),
                      static_cast<long long>(found.missed),
                      static_cast<long long>(found.missed + found.caught));
        text += part;
      }
    if (text.empty()) continue;
    ++misses;
    std::printf("%s:%s\n", classes[i].name().c_str(), text.c_str());
  }
  std::printf("%zu classes, %d miss 999 of 1000; correct: %lld passed, %lld failed, %lld cannot be checked\n",
              classes.size(), misses, static_cast<long long>(total.passed),
              static_cast<long long>(total.failed), static_cast<long long>(total.cannot_be_checked));
  for (const auto& [fault, found] : total.faults)
    std::printf("  %-22s %8lld caught %6lld missed %6lld cannot be checked %6lld invisible\n", fault.c_str(),
                static_cast<long long>(found.caught), static_cast<long long>(found.missed),
                static_cast<long long>(found.cannot_be_checked), static_cast<long long>(found.invisible));
  std::printf("%.1f s, %.2f ms a network on a core\n", seconds,
              1e3 * seconds * parallel_threads() / static_cast<double>(total.networks));
  if (!options.json.empty()) {
    std::FILE* file = std::fopen(options.json.c_str(), "w");
    if (file == nullptr) refuse("--json " + options.json + ": cannot be written");
    std::fprintf(file, "{\"seed\": %llu, \"networks\": %lld, \"copies\": %d, \"classes\": [\n %s\n]}\n",
                 static_cast<unsigned long long>(options.networks.seed), static_cast<long long>(count),
                 options.networks.copies, json.c_str());
    std::fclose(file);
  }
  return 0;
}
