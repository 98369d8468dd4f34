"""Formulas of the site, drawn by matplotlib: in the colour of the text, without a script or a net.

A page has them as GitHub reads them, in a block that begins with ```math.
"""

from html import escape
from typing import Any

from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

FONT = FontProperties(math_fontfamily="cm")
LETTERS = dict(zip((1, 2, 3, 4, Path.CLOSEPOLY), "MLQCZ", strict=True))  # of matplotlib and SVG
MARGIN = 2  # a stroke may pass the box by a little


def drawing(formula: str) -> str:
    """A formula of TeX as an SVG image."""
    path = TextPath((0, 0), f"${formula}$", size=19, prop=FONT)
    flipped = path.transformed(Affine2D().scale(1, -1))  # SVG counts downwards
    box = flipped.get_extents().padded(MARGIN)
    strokes = (
        LETTERS[int(code)] + " ".join(f"{v:.1f}" for v in points if code != Path.CLOSEPOLY)
        for points, code in flipped.iter_segments(simplify=False)
    )
    return (
        f'<svg viewBox="{box.x0:.1f} {box.y0:.1f} {box.width:.1f} {box.height:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}" aria-hidden="true">'
        f'<path fill="currentColor" d="{"".join(strokes)}"/></svg>'
    )


def visit(translator: Any, node: nodes.math | nodes.math_block) -> None:
    formula = " ".join(node.astext().split())
    tag = "div" if isinstance(node, nodes.math_block) else "span"
    opening = f'<{tag} class="formula" role="img" aria-label="{escape(formula)}">'
    translator.body.append(f"{opening}{drawing(formula)}</{tag}>")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("drawn", (visit, None), (visit, None))
    app.config.html_math_renderer = "drawn"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
