"""Scheduling policies, one module each. They use the hooks of `interlock.core` and nothing else."""
