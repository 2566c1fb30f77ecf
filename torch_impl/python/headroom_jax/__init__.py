"""The JAX worker: JAX's modes behind the worker protocol (bench/worker/PROTOCOL.md)."""
