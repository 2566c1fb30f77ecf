#include "driver/system/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace headroom {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

}  // namespace

std::size_t terminal_width(int descriptor) {
  constexpr std::size_t kUsual = 80;
  if (isatty(descriptor) != 1) return kNoWidth;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string columns(variable("COLUMNS"));
  const long number = std::strtol(columns.c_str(), nullptr, 10);
  return number > 0 ? static_cast<std::size_t>(number) : kUsual;
}

bool takes_escape_codes(int descriptor) {
  const std::string_view kind = variable("TERM");
  return isatty(descriptor) == 1 && !kind.empty() && kind != "dumb" && variable("NO_COLOR").empty();
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::size_t bytes_of(const std::string& text, std::size_t count) {
  std::size_t bytes = 0, begun = 0;
  while (bytes < text.size() && !(begins_character(text[bytes]) && begun++ == count)) ++bytes;
  return bytes;
}

std::string cut_to(const std::string& text, std::size_t width) {
  if (characters(text) <= width) return text;
  const std::string dots = std::string("...").substr(0, width);
  return text.substr(0, bytes_of(text, width - dots.size())) + dots;
}

}  // namespace headroom
