"""What `hello` says about a CUDA device, asked of the CUDA driver and NVML, without a context."""

import ctypes

# CUdevice_attribute in cuda.h.
_MULTIPROCESSORS, _L2_BYTES, _COMPUTE_MAJOR, _COMPUTE_MINOR = 16, 38, 75, 76


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


def device_description(index: int) -> dict | None:
    """The device of that CUDA index, as PROTOCOL.md has it; None if the driver does not say all of it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")

        def call(name: str, *arguments) -> None:
            status = getattr(cuda, name)(*arguments)
            if status != 0:
                raise OSError(f"{name}: CUDA error {status}")

        def attribute(number: int) -> int:
            value = ctypes.c_int()
            call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
            return value.value

        call("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        name, identity, memory = (
            ctypes.create_string_buffer(256),
            ctypes.create_string_buffer(16),
            ctypes.c_size_t(),
        )
        call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        call("cuDeviceGetUuid_v2", identity, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        return {
            "index": index,
            "name": name.value.decode(errors="replace"),
            "uuid": _uuid(identity.raw),
            "driver": driver_version(),
            "sm_count": attribute(_MULTIPROCESSORS),
            "compute_major": attribute(_COMPUTE_MAJOR),
            "compute_minor": attribute(_COMPUTE_MINOR),
            "memory_bytes": memory.value,
            "l2_bytes": attribute(_L2_BYTES),
        }
    except (OSError, AttributeError):
        return None


def device_descriptions() -> list[dict]:
    """All that the driver shows to this process; none if it does not say."""
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if cuda.cuInit(ctypes.c_uint(0)) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return []
    except (OSError, AttributeError):
        return []
    found = [device_description(index) for index in range(count.value)]
    return [device for device in found if device is not None]


def _uuid(identity: bytes) -> str:
    digits = identity.hex()
    ends = (0, 8, 12, 16, 20, 32)
    return "GPU-" + "-".join(digits[begin:end] for begin, end in zip(ends, ends[1:], strict=False))
