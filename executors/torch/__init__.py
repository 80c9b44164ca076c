"""The torch backend: real models with paged KV, dense and looped, on the CPU and on CUDA."""
