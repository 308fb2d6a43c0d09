"""What tests share, in rooms: stand-ins for disks, models, workloads, processes, builders, Spark, services.

tests/README.md is the index: each module in a line, and which model is for what.
"""
