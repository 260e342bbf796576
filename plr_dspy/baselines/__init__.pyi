from .label_methods import PDO as PDO
from .label_methods import DEmO as DEmO
from .label_methods import GlobalE as GlobalE
from .label_methods import LocalE as LocalE
from .label_methods import PerInputOrder as PerInputOrder
from .random_search import StaticOrder as StaticOrder
from .random_search import TopKOrder as TopKOrder
