"""What `hello` says about the CUDA device: PyTorch's view of it, and the driver's version from NVML."""

from types import ModuleType

from headroom_protocol.cuda_driver import driver_version


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
