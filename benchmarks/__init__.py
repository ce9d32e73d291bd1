"""Side by side with what a user would pick instead; ``python -m benchmarks --help``.

Read `cases` to see what a kernel of the suite is, and any module of `kernels` for an example;
`measure` times, `compare` checks and judges, `report` and `plot` show.
"""
