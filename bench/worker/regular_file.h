// Opening what another process may have put there: a plain file and nothing else.
#pragma once

#include <filesystem>
#include <string>

#include "worker/descriptor.h"

namespace headroom {

/// The regular file, opened (closed on exec), or no descriptor and the reason in errno: EINVAL where something else is
/// there, ELOOP where it is a link. Never waits, as a FIFO would make it.
Descriptor open_regular_file(const std::filesystem::path& file, int flags);

/// The system's words for it, or that it is no regular file.
std::string open_failure(int error);

/// Removes what is there, unless it is a regular file: a link itself and not where it leads, a folder with its contents.
void remove_unless_regular(const std::filesystem::path& file);

}  // namespace headroom
