"""SVG of curves over two logarithmic axes, readable on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 360, 70, 50, 40
COLOURS = ("#3f7f3f", "#b06000", "#3060b0", "#905090")
STYLE = "text{font:12px sans-serif;fill:#888}.a{stroke:#888;stroke-opacity:.3}.c{fill:none;stroke-width:2}"
Curve = Sequence[tuple[float, float]]


def draw(title: str, across: str, up: str, curves: Mapping[str, Curve]) -> str:
    """Return an SVG file that draws the curves with logarithmic axes; all values must be above 0."""
    xs = [x for curve in curves.values() for x, _ in curve]
    ys = [y for curve in curves.values() for _, y in curve]
    x_from, x_to = math.log10(min(xs)), math.log10(max(xs))
    y_from, y_to = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a point of the curves."""
        right = (math.log10(x) - x_from) / (x_to - x_from)
        above = (math.log10(y) - y_from) / (y_to - y_from)
        return LEFT + right * (WIDTH - LEFT - 20), HEIGHT - BOTTOM - above * (HEIGHT - BOTTOM - TOP)

    def parts() -> Iterator[str]:
        """Yield the elements of the file: axes with labels, then curves."""
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        yield f"<title>{escape(title)}</title><style>{STYLE}</style>"
        for power in range(y_from, y_to + 1):
            x, y = place(min(xs), 10.0**power)
            yield f'<path class="a" d="M{x:.0f} {y:.1f}H{WIDTH - 20}"/>'
            yield f'<text x="{x - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        for value in sorted(set(xs)):
            x, y = place(value, 10.0**y_from)
            yield f'<text x="{x:.1f}" y="{y + 18:.0f}" text-anchor="middle">{value:g}</text>'
        yield f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>'
        yield f'<text x="{LEFT - 8}" y="{TOP - 18}" text-anchor="end">{escape(up)}</text>'
        for number, (name, curve) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*each) for each in curve))
            yield f'<polyline class="c" stroke="{colour}" points="{points}"/>'
            x, y = place(*curve[0])
            yield f'<text x="{x + 8:.0f}" y="{y - 8:.0f}" style="fill:{colour}">{escape(name)}</text>'
        yield "</svg>"

    return "\n".join(parts()) + "\n"
