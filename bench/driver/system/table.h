// Tables and prose as wide as the terminal that they are printed on.
//
// A table that is too wide becomes narrower in this order: what its rows have in common becomes a heading, columns are
// left out (the note below says which), and at last every row is a list of its fields. Whatever has no terminal, such as
// a file or a pipe, gets the whole table.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "driver/system/terminal.h"

namespace headroom {

struct Table {
  using Row = std::vector<std::string>;
  Row header;
  std::vector<Row> rows;
  std::set<std::size_t> numbers = {};         ///< columns that stand to the right
  std::size_t in_heading = 0;                 ///< so many columns at the left may become a heading
  std::vector<std::size_t> dispensable = {};  ///< columns that may be left out, the first of them first
};

/// A line for the header and for each row. The last column has no end.
std::string table_text(const Table& table, std::size_t width = kNoWidth);

/// Rows of columns without a header, `indent` blanks from the left. A row of one field is as long as it is.
std::string columns_text(const std::vector<Table::Row>& rows, std::size_t indent,
                         const std::set<std::size_t>& numbers = {});

/// The text with lines of at most `width` characters, broken at blanks; a word that is longer stays whole. The rest of a
/// line stands below its last column, where columns are two blanks apart, or below its beginning.
std::string wrapped(const std::string& text, std::size_t width);

}  // namespace headroom
