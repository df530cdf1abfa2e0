"""Speed benchmarks, each compared with a baseline measured in the same run."""
