#include "driver/system/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace headroom {
namespace {

constexpr std::size_t kGap = 2, kIndent = 2;
// Of the last column so much has to fit; the rest is wrapped.
constexpr std::size_t kLeastOfLast = 20;

std::string blanks(std::size_t count) { return std::string(count, ' '); }

// Some columns of a table side by side.
class Layout {
 public:
  Layout(const Table& table, std::vector<std::size_t> columns, std::size_t indent)
      : table_(table), columns_(std::move(columns)), indent_(indent) {
    for (const std::size_t column : columns_) {
      std::size_t& width = widths_.emplace_back(characters(table.header[column]));
      for (const Table::Row& row : table.rows) width = std::max(width, characters(row[column]));
    }
  }

  bool fits(std::size_t width) const {
    const std::size_t but_last =
        std::accumulate(widths_.begin(), widths_.end() - 1, indent_ + kGap * (widths_.size() - 1));
    return but_last + std::min(widths_.back(), kLeastOfLast) <= width;
  }

  std::string line(const Table::Row& row) const {
    std::string text = blanks(indent_);
    for (std::size_t i = 0; i + 1 < columns_.size(); ++i) {
      const std::string& field = row[columns_[i]];
      const std::string padding = blanks(widths_[i] - characters(field));
      text += (table_.numbers.count(columns_[i]) > 0 ? padding + field : field + padding) + blanks(kGap);
    }
    return text + row[columns_.back()] + "\n";
  }

 private:
  const Table& table_;
  std::vector<std::size_t> columns_, widths_;
  std::size_t indent_;
};

// All rows, each made by `text_of`, below the headings that they share.
template <typename TextOf>
std::string under_headings(const Table& table, const TextOf& text_of) {
  std::string text, last;
  for (const Table::Row& row : table.rows) {
    std::string heading;
    for (std::size_t i = 0; i < table.in_heading; ++i) heading += (i > 0 ? " " : "") + row[i];
    if (heading != last) text += heading + "\n";
    last = heading;
    text += text_of(row);
  }
  return text;
}

// A row as the list of its fields; the first one that is not in the heading is its name, unless it is a number.
std::string list_of_fields(const Table& table, const Table::Row& row, std::size_t indent) {
  std::size_t longest = 0;
  for (const std::string& name : table.header) longest = std::max(longest, characters(name));
  const bool named = table.numbers.count(table.in_heading) == 0;
  std::string text = named ? blanks(indent) + row[table.in_heading] + "\n" : "";
  for (std::size_t i = table.in_heading + (named ? 1 : 0); i < row.size(); ++i) {
    if (row[i].empty()) continue;
    const std::string& name = table.header[i];
    text += blanks(indent + kIndent) + name + blanks(longest - characters(name) + kGap) + row[i] + "\n";
  }
  return text;
}

std::string wrapped_line(std::string line, std::size_t width) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  std::size_t indent = begin;
  for (std::size_t at = begin; (at = line.find("  ", at)) != std::string::npos;) {
    at = std::min(line.find_first_not_of(' ', at), line.size());
    if (const std::size_t column = characters(line.substr(0, at)); 3 * column <= 2 * width) indent = column;
  }
  std::string text;
  std::size_t first_word = begin;  // no break before it
  while (characters(line) > width) {
    std::size_t at = line.rfind(' ', bytes_of(line, width));
    if (at == std::string::npos || at < first_word) at = line.find(' ', first_word);
    if (at == std::string::npos) break;
    text += line.substr(0, line.find_last_not_of(' ', at) + 1) + "\n";
    line = blanks(indent) + line.substr(std::min(line.find_first_not_of(' ', at), line.size()));
    first_word = indent;
  }
  return text + line;
}

}  // namespace

std::string table_text(const Table& table, std::size_t width) {
  std::vector<std::size_t> columns(table.header.size());
  std::iota(columns.begin(), columns.end(), std::size_t{0});
  if (const Layout whole(table, columns, 0); whole.fits(width)) {
    std::string text = whole.line(table.header);
    for (const Table::Row& row : table.rows) text += whole.line(row);
    return text;
  }
  columns.erase(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(table.in_heading));
  const std::size_t indent = table.in_heading > 0 ? kIndent : 0;
  std::string left_out;
  auto next = table.dispensable.begin();
  while (true) {
    const Layout narrow(table, columns, indent);
    if (narrow.fits(width)) {
      return narrow.line(table.header) +
             under_headings(table, [&](const Table::Row& row) { return narrow.line(row); }) +
             (left_out.empty() ? "" : fmt::format("left out at this width: {}\n", left_out));
    }
    if (next == table.dispensable.end()) break;
    left_out += (left_out.empty() ? "" : ", ") + table.header[*next];
    std::erase(columns, *next++);
  }
  return under_headings(table, [&](const Table::Row& row) { return list_of_fields(table, row, indent); });
}

std::string columns_text(const std::vector<Table::Row>& rows, std::size_t indent,
                         const std::set<std::size_t>& numbers) {
  Table table{.header = {}, .rows = {}, .numbers = numbers};
  for (const Table::Row& row : rows) {
    if (row.size() < 2) continue;
    table.header.resize(row.size());
    table.rows.push_back(row);
  }
  std::vector<std::size_t> columns(table.header.size());
  std::iota(columns.begin(), columns.end(), std::size_t{0});
  const Layout layout(table, std::move(columns), indent);
  std::string text;
  for (const Table::Row& row : rows)
    text += row.size() < 2 ? blanks(indent) + row.front() + "\n" : layout.line(row);
  return text;
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::string all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    all += wrapped_line(text.substr(begin, end - begin), width);
    if (end < text.size()) all += "\n";
    begin = end + 1;
  }
  return all;
}

}  // namespace headroom
