"""What `hello` says about the CUDA device: PyTorch's view of it, and the driver's version from NVML."""

import ctypes
from types import ModuleType


def driver_version() -> str:
    """As NVIDIA writes it, such as 580.159.04; empty if NVML does not say. CUDA only knows its API level."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) != 0:
            return ""
        nvml.nvmlShutdown()
        return text.value.decode(errors="replace")
    except (OSError, AttributeError):
        return ""


def device_description(torch: ModuleType, index: int) -> dict:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "index": index,
        "name": properties.name,
        "uuid": f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid,
        "driver": driver_version(),
        "sm_count": properties.multi_processor_count,
        "compute_major": properties.major,
        "compute_minor": properties.minor,
        "memory_bytes": properties.total_memory,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
    }
