// Which GPU this is, and a clean answer where there is none.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "core/record.h"

namespace headroom {

/// Why CUDA device `index` cannot be used: "no CUDA device", or CUDA's words, or how many devices there are.
/// nullopt if it can. Never throws, also where no driver is installed.
std::optional<std::string> device_missing(int index);

/// Name, UUID as nvidia-smi writes it ("GPU-..."), driver version, sizes. Throws if the device cannot be
/// used.
DeviceInfo device_info(int index);

/// A number that CUDA knows about device `index`.
int device_attribute(cudaDeviceAttr name, int index);

/// Makes `index` the device of this thread. Throws UnsupportedError with device_missing()'s reason.
void use_device(int index);

/// "13.0" for the CUDA runtime this program was linked with.
std::string cuda_runtime_version();

/// Version in NVIDIA's text ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ..."): its first
/// word of digits and dots; empty if there is none.
std::string parse_driver_version(const std::string& text);

}  // namespace headroom
