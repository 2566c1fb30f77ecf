// Where the stand-in for NCCL lies (fake_nccl.cu): beside the program, wherever its build was moved.
#pragma once

#include <filesystem>
#include <string>

namespace headroom {

inline std::string fake_nccl() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake-nccl" / "libnccl.so.2")
      .string();
}

}  // namespace headroom
