"""A small language model on this machine: llama.cpp's server in a child process, on loopback only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
