"""Faults, really injected: processes killed, disks filled, files damaged. After each, nothing finished is lost, and the
rerun ends in the same bits as if nothing had happened.

`python -m tests.torture` (or `make torture`) does it at length and writes results/torture.json; tests/test_torture.py
does a little of each part.
"""
