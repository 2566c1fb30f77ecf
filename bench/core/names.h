// Names of workloads, suites, backends, workers and baselines. Somebody else chose them, and they stand in lists with
// commas, in names of files and on terminals, so they are checked where they enter.
#pragma once

#include <string>
#include <string_view>

namespace headroom {

inline constexpr std::size_t kLongestName = 128;
/// What is_name() takes, to be put after "expected ".
inline constexpr const char* kNameRule =
    "a name of letters, digits, '.', '-' and '_', at most 128 of them, the first no '.' or '-'";

/// ASCII letters, digits, '.', '-' and '_', the first no '.' and no '-': so neither "." nor "..", no hidden file and no
/// option.
bool is_name(std::string_view text);

/// Throws InputError "WHERE 'NAME': expected ..." unless it is one.
void check_name(const std::string& where, std::string_view name);

/// What is_workload_name() takes, to be put after "expected ".
inline constexpr const char* kWorkloadNameRule =
    "a name of small letters, digits, '.' and '-', at most 128 of them, the first a letter or a digit";

/// What a suite may call a workload: such a name is part of a benchmark's name, of files and of lists with commas.
bool is_workload_name(std::string_view text);

/// Levenshtein's: how many letters to replace, add or leave out.
std::size_t edit_distance(std::string_view one, std::string_view other);

/// What can go to a terminal: control characters other than '\n', among them U+0080 to U+009F, become spaces, and bytes
/// that are no UTF-8 become '?'.
std::string printable(std::string_view text);

}  // namespace headroom
