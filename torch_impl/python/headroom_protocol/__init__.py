"""The worker protocol (bench/worker/PROTOCOL.md), for the Python workers of all frameworks."""
