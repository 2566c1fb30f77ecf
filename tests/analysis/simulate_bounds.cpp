// Counts how often the step check is right, over random networks of every class (bounds_simulation.h), and writes the counts as JSON.
// Several machines can each do a range of the networks; --merge adds their files.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <regex>
#include <sstream>

#include "bounds_counts.h"
#include "core/parallel.h"

namespace {

using namespace headroom;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: headroom-simulate-bounds [--first N] [--networks N] [--seconds S] [--threads N] [--class REGEX] "
    "[--seed S] [--json FILE]\n"
    "                                [--widths IN-HIDDEN-...-OUT --batch B] [--spreads X] [--tell]\n"
    "       headroom-simulate-bounds --merge FILE... --json FILE\n"
    "  --seconds S   ends behind the last round over all classes that is done before S seconds are over\n"
    "  --tell        says on standard error which networks were judged wrongly\n";

struct Options {
  SimulatedNetworks networks{.count = 100};
  double seconds = std::numeric_limits<double>::infinity();
  std::string classes = ".*", json;
  std::vector<std::string> merged{};
};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "headroom-simulate-bounds: %s\n%s", what.c_str(), kUsage);
  std::exit(2);
}

template <typename Number>
Number number(const std::string& name, const std::string& value, Number least) {
  std::istringstream stream(value);
  Number number{};
  if (!(stream >> number) || !stream.eof() || number < least || value.front() == '-')
    refuse(name + " " + value + ": expected a number of at least " + std::to_string(least));
  return number;
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
    if (name == "--merge") {
      while (i + 1 < argc && argv[i + 1][0] != '-') options.merged.push_back(argv[++i]);
      if (options.merged.empty()) refuse("--merge: expected files");
      continue;
    }
    if (i + 1 == argc) refuse(name + ": expected a value");
    const std::string value = argv[++i];
    if (name == "--first") {
      options.networks.first = number<std::int64_t>(name, value, 0);
    } else if (name == "--networks") {
      options.networks.count = number<std::int64_t>(name, value, 1);
    } else if (name == "--seconds") {
      options.seconds = number<double>(name, value, 0);
    } else if (name == "--threads") {
      set_parallel_threads(number<int>(name, value, 1));
    } else if (name == "--class") {
      options.classes = value;
    } else if (name == "--seed") {
      options.networks.seed = number<std::uint64_t>(name, value, 0);
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--spreads") {
      options.networks.spreads = number<double>(name, value, 0);
    } else if (name == "--batch") {
      options.networks.batch_size = number<int>(name, value, 1);
    } else if (name == "--widths") {
      std::stringstream widths(value);
      for (std::string width; std::getline(widths, width, '-');)
        options.networks.widths.push_back(number<int>(name, width, 1));
    } else {
      refuse("no option is called " + name);
    }
  }
  if (!options.json.empty() && (options.networks.spreads > 0 || !options.networks.widths.empty()))
    refuse(
        "--json: files are of the bounds as they are and of random networks, without --spreads and --widths");
  if (!options.merged.empty() && options.json.empty()) refuse("--merge: expected --json FILE");
  return options;
}

void write(const std::string& file, const std::string& text) {
  const std::string beside = file + ".part";
  std::ofstream(beside) << text << std::flush;
  std::error_code error;
  if (std::filesystem::file_size(beside, error) == text.size()) std::filesystem::rename(beside, file, error);
  if (error) refuse("--json " + file + ": cannot be written");
}

BoundsCounts merged(const std::vector<std::string>& files) {
  BoundsCounts total;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    if (!stream) refuse(file + ": cannot be read");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    try {
      const BoundsCounts one = counts_from_json(text, file);
      if (total.classes.empty())
        total = one;
      else
        total.add(one);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      refuse(what.starts_with(file) ? what : file + ": " + what);
    }
  }
  return total;
}

/// Rounds over all classes until there are enough networks or the time is over.
BoundsCounts simulated(const Options& options, std::mutex& mutex) {
  constexpr std::int64_t kRoundNetworks = 2000;  // of all classes: worth waiting for the last thread
  const std::regex pattern(options.classes);
  std::vector<SimulatedClass> classes;
  BoundsCounts counts{.copies = options.networks.copies};
  for (const SimulatedClass& one : all_classes())
    if (std::regex_search(one.name(), pattern)) {
      classes.push_back(one);
      counts.classes.push_back({one.name()});
    }
  if (classes.empty()) refuse("--class " + options.classes + ": no class matches");

  NetworkRange range{options.networks.seed, options.networks.first, 0};
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double longest = 0;
  while (range.count < options.networks.count && seconds() + 1.2 * longest <= options.seconds) {
    const double begin = seconds();
    const std::int64_t round =
        std::min(1 + kRoundNetworks / std::ssize(classes), options.networks.count - range.count);
    parallel_for(round * std::ssize(classes), 1, [&](std::int64_t item, std::int64_t) {
      const std::size_t which = static_cast<std::size_t>(item / round);
      SimulatedNetworks one = options.networks;
      one.first = range.first + range.count + item % round;
      one.count = 1;
      const Counts found = simulate(classes[which], one);
      const std::lock_guard lock(mutex);
      counts.classes[which].counts.add(found);
    });
    range.count += round;
    for (ClassCounts& one : counts.classes) one.ranges = {range};
    if (!options.json.empty()) write(options.json, to_json(counts));
    longest = std::max(longest, seconds() - begin);
  }
  std::printf("%.1f s, %.2f ms a network on each of %d threads\n", seconds(),
              1e3 * seconds() * parallel_threads() / static_cast<double>(range.count * std::ssize(classes)),
              parallel_threads());
  return counts;
}

/// Right judgements of a thousand, of those that were judged.
double per_thousand(std::int64_t right, std::int64_t wrong) {
  return right + wrong == 0 ? 1000 : 1000.0 * static_cast<double>(right) / static_cast<double>(right + wrong);
}

void show(const BoundsCounts& counts) {
  int misses = 0;
  Counts total;
  for (const ClassCounts& of_class : counts.classes) {
    const Counts& one = of_class.counts;
    total.add(one);
    std::ostringstream text;
    if (per_thousand(one.passed, one.failed) < 999)
      text << " " << one.failed << " of " << one.failed + one.passed << " correct failed;";
    if (per_thousand(one.free_steps.passed, one.free_steps.failed) < 999)
      text << " " << one.free_steps.failed << " of " << one.free_steps.failed + one.free_steps.passed
           << " correct failed ten steps;";
    for (const auto& [fault, found] : one.faults)
      if (per_thousand(found.caught, found.missed) < 999)
        text << " " << fault << ": " << found.missed << " of " << found.missed + found.caught << " missed;";
    if (text.str().empty()) continue;
    ++misses;
    std::printf("%s:%s\n", of_class.name.c_str(), text.str().c_str());
  }
  std::printf(
      "%zu classes of %lld networks, %d miss 999 of 1000; correct: %lld passed, %lld failed, %lld cannot be "
      "checked\n",
      counts.classes.size(), static_cast<long long>(counts.networks()), misses,
      static_cast<long long>(total.passed), static_cast<long long>(total.failed),
      static_cast<long long>(total.cannot_be_checked));
  std::printf("ten steps: %lld passed, %lld failed\n", static_cast<long long>(total.free_steps.passed),
              static_cast<long long>(total.free_steps.failed));
  for (const auto& [fault, found] : total.faults)
    std::printf("  %-22s %8lld caught %6lld missed %6lld cannot be checked %6lld invisible\n", fault.c_str(),
                static_cast<long long>(found.caught), static_cast<long long>(found.missed),
                static_cast<long long>(found.cannot_be_checked), static_cast<long long>(found.invisible));
}

}  // namespace

int main(int argc, char** argv) {
  std::mutex mutex;
  const Options options = parse(argc, argv, mutex);
  if (options.merged.empty()) {
    show(simulated(options, mutex));
  } else {
    const BoundsCounts counts = merged(options.merged);
    write(options.json, to_json(counts));
    show(counts);
  }
  return 0;
}
