#include "driver/system/csv_text.h"

namespace headroom {
namespace {

bool needs_quotes(const std::string& field) {
  return field.find_first_of(",\"\r\n") != std::string::npos ||
         (!field.empty() && (field.front() == ' ' || field.back() == ' '));
}

}  // namespace

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (&field != fields.data()) line += ',';
    if (!needs_quotes(field)) {
      line += field;
      continue;
    }
    line += '"';
    for (const char c : field) line += c == '"' ? "\"\"" : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

}  // namespace headroom
