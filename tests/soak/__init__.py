"""An hour of random jobs, faults and attackers on the sandbox cluster, and what reports must say.

python -m tests.soak --seconds 600 --seed 4
"""
