#include "choice/kept_choices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/optimizer_numbers.h"
#include "jit/digest.h"

namespace headroom::choice {
namespace {

constexpr std::string_view kFirstLine = "headroom choice 1\n";

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// A line each: when, what was taken (nothing: empty), and the candidates with their seconds and why they are left out.
std::string encode(const Choice& choice, double now) {
  char time[40];
  std::snprintf(time, sizeof time, "%.6f", now);
  std::string body = std::string(time) + "\n" + choice.taken + "\n";
  for (const Choice::Candidate& one : choice.candidates)
    body += one.backend + " " + (one.step_seconds ? number(*one.step_seconds) : "-") + " " +
            one_line(one.left_out) + "\n";
  return std::string(kFirstLine) + jit::sha256(body) + "\n" + body;
}

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

std::string take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return std::string(word);
}

}  // namespace

std::string key_of(const std::string& gpu, const std::string& sources, const Workload& workload,
                   Precision precision, std::int64_t samples) {
  jit::Digest digest;
  digest.add(gpu);
  digest.add(sources);
  digest.add(to_string(precision));
  digest.add(to_string(workload.model.activation));
  digest.add(to_string(workload.loss));
  digest.add(to_string(workload.optimizer.kind));
  for (const std::string_view name : kOptimizerNumbers)
    if (const double* value = optimizer_number(workload.optimizer, name))
      digest.add(std::string(name) + " " + number(*value));
  digest.add(std::to_string(workload.batch_size));
  digest.add(std::to_string(workload.devices));
  digest.add(std::to_string(samples));
  for (const int width : workload.model.widths) digest.add(std::to_string(width));
  return digest.hex();
}

std::optional<Choice> KeptChoices::find(const std::string& key) const {
  const std::optional<std::string> file = files_.find(key + ".choice");
  if (!file) return std::nullopt;
  std::string_view text = *file;
  if (!text.starts_with(kFirstLine)) return std::nullopt;
  text.remove_prefix(kFirstLine.size());
  const std::string_view digest = take_line(text);
  if (digest != jit::sha256(text)) return std::nullopt;
  // From here on it is what encode() wrote.
  if (std::strtod(std::string(take_line(text)).c_str(), nullptr) < since_) return std::nullopt;
  Choice choice;
  choice.was_kept = true;
  choice.taken = take_line(text);
  while (!text.empty()) {
    std::string_view line = take_line(text);
    Choice::Candidate& one = choice.candidates.emplace_back();
    one.backend = take_word(line);
    if (const std::string seconds = take_word(line); seconds != "-")
      one.step_seconds = std::strtod(seconds.c_str(), nullptr);
    one.left_out = line;
  }
  return choice;
}

bool KeptChoices::keep(const std::string& key, const Choice& choice, double now) const {
  return files_.keep(key + ".choice", encode(choice, now));
}

}  // namespace headroom::choice
