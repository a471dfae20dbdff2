"""docs/benchmarks.md, its plots and the README's figures, written from the rows of a full run."""
