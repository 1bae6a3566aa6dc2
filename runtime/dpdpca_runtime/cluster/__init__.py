"""Long work on a Dask cluster: its address, calls that the scheduler cannot read, and an executor."""
