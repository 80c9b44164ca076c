"""The simulated backend: virtual time, a cost model, and tokens that are a fixed function of prompt and position.

`executor` holds the backend, `options` its configuration, `rows` and `exits` what the simulated model says and when it
leaves its loop.
"""
