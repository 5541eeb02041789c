"""NVIDIA cards through NVML: what is read, by which call, and what its errors mean."""
