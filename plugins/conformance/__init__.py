"""The conformance suite: one generator of named checks for every policy stack, ours or not.

`interlock check STACK` and `pytest --pyargs interlock.plugins.conformance --interlock-policy STACK` are its two fronts.
It tests, and shows a counter-example where a policy fails; it proves nothing. Needs the extra `check`.
"""
