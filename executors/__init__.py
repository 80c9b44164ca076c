"""Backends that run batches, one package each. They import the core and never each other."""
