"""`load`: any data set by its name and folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from obc.data.cifar import cifar10, cifar100
from obc.data.digits import digits
from obc.data.folder import folders
from obc.data.idx import fashion_mnist
from obc.data.images import Images
from obc.data.tensors import tensors
from obc.errors import ObcError, closest

_ON_DISK = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "tensors": tensors,
}
NAMES = ("digits", *_ON_DISK, "folder")


@dataclass(frozen=True)
class Data:
    """Training and test images of one data set."""

    name: str
    train: Images
    test: Images

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return self.train.shape


def load(name: str, folder: str | Path | None = None, *, size: int = 224) -> Data:
    """A data set by name; all but the digits are read from a folder.

    `size` is the side of the images of a "folder", in pixels.

    >>> data = load("digits")
    >>> len(data.train), len(data.test), data.shape
    (1437, 360, (1, 8, 8))
    """
    if name not in NAMES:
        raise ObcError(
            f"no data set named '{name}'{closest(name, NAMES)}; there are {', '.join(NAMES)}",
            section="names",
        )
    if name == "digits":
        return Data(name, *digits())
    if folder is None:
        raise ObcError(f"'{name}' is read from a folder: say which")
    root = Path(folder)
    if not root.is_dir():
        raise ObcError(f"no folder {root}")
    parts = folders(root, size) if name == "folder" else _ON_DISK[name](root)
    return Data(name, *parts)
