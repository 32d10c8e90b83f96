"""The programs that benchmarks run, one file for each benchmark."""
