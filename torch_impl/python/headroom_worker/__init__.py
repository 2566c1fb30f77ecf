"""The Python worker: PyTorch's own modes behind the worker protocol (bench/worker/PROTOCOL.md)."""
