"""The public Python API; `import sleuth` exposes its classes."""
