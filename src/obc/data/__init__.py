"""Small data sets as tensors in memory, image folders, and batches of them in a known order."""

from obc.data.catalog import NAMES, Data, load
from obc.data.folder import Folder
from obc.data.images import Batch, Images, Loaded

__all__ = ["NAMES", "Batch", "Data", "Folder", "Images", "Loaded", "load"]
