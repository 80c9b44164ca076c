"""How long a step takes, for backends in virtual time and for policies that ask.

`cost` holds the interface and the linear model, `roofline` a named model on a named device (both from `catalog`),
`profile` coefficients fitted to measured steps, `options` the section `cost` of a configuration.
"""
