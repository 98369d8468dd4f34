"""Running a model and leaving no trace: forward passes, snapshots, comparisons, time, processes."""
