"""placeholder"""


def write() -> None: ...
