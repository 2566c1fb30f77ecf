#include "driver/compare/formats/formats.h"

#include <stdexcept>

namespace headroom {
namespace {

using Writer = std::string (*)(const Comparison& comparison, std::size_t width);

template <std::string (*Write)(const Comparison&)>
std::string at_any_width(const Comparison& comparison, std::size_t) {
  return Write(comparison);
}

struct Format {
  CompareFormat format;
  Writer write;
};

constexpr Format kFormats[] = {
    {CompareFormat::kText, comparison_text},
    {CompareFormat::kMarkdown, at_any_width<comparison_markdown>},
    {CompareFormat::kJson, at_any_width<comparison_json>},
    {CompareFormat::kGoogleBenchmark, at_any_width<comparison_google_benchmark>},
    {CompareFormat::kBencher, at_any_width<comparison_bencher>},
    {CompareFormat::kGithubActionBenchmark, at_any_width<comparison_github_action>},
};

}  // namespace

std::string formatted(const Comparison& comparison, CompareFormat format, std::size_t width) {
  for (const Format& one : kFormats) {
    if (one.format == format) return one.write(comparison, width);
  }
  throw std::logic_error("a format of comparisons has no writer");
}

}  // namespace headroom
