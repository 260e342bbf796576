from .server import LocalServer as LocalServer
from .server import local_lm as local_lm
