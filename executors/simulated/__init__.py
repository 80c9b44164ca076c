"""The simulated backend: virtual time, a cost model, and tokens that are a fixed function of prompt and position.

`executor` holds the backend, `options` its configuration, `cost`, `roofline` and `profile` the cost models, `catalog`
the models and devices they know, `rows` and `exits` what the simulated model says and when it leaves its loop.
"""
