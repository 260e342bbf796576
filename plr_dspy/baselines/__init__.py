"""The published alternatives to `PLReorder`, to be used and compared in its place."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
