"""The reliability diagram as an SVG picture: what share of claims is supported where the model says p."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from offline_judge.calibration.record import Calibration

_SIZE, _LEFT, _TOP = 360, 60, 48
_COLOURS = {"raw": "#c0392b", "platt": "#2468b0", "isotonic": "#2e8b57"}


def reliability_svg(calibration: Calibration) -> str:
    """Draw the points of raw, Platt's and isotonic probabilities; a circle's area grows with its rows.

    The curves are out of fold. A calibrated model lies on the diagonal.
    """
    figures = calibration.figures
    shapes = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="#888"/>',
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#aaa" stroke-dasharray="4"/>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        shapes.append(_text(_x(tick), _TOP + _SIZE + 18, f"{tick:g}", "middle"))
        shapes.append(_text(_LEFT - 8, _y(tick) + 4, f"{tick:g}", "end"))
    at = _x(calibration.threshold)
    shapes.append(
        f'<line x1="{at}" y1="{_y(0)}" x2="{at}" y2="{_y(1)}" stroke="#c0392b" stroke-width="0.6"/>'
    )
    for row, (name, colour) in enumerate(_COLOURS.items()):
        shapes.extend(_curve(figures["reliability"][name], colour))
        ece = figures["ece" if name == "raw" else f"ece_{name}"][0]
        shapes.append(_text(_LEFT + 12, _TOP + 20 + 18 * row, f"{name}, ECE {ece:.3f}", "start", colour))
    n, at_p = calibration.labels["n"], calibration.threshold
    title = f"{calibration.model}: {n} labelled claims, threshold {at_p:.3f}"
    shapes.append(_text(_LEFT, _TOP - 18, title, "start"))
    shapes.append(_text(_LEFT + _SIZE / 2, _TOP + _SIZE + 40, "probability that the model gives", "middle"))
    middle = _TOP + _SIZE / 2
    side = _text(18, middle, "share of claims that are supported", "middle")
    shapes.append(f'<g transform="rotate(-90 18 {middle})">{side}</g>')
    width, height = _LEFT + _SIZE + 24, _TOP + _SIZE + 56
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _curve(points: Sequence[Sequence[float]], colour: str) -> list[str]:
    most = max(n for _, _, n in points)
    line = " ".join(f"{_x(p)},{_y(share)}" for p, share, _ in points)
    circles = [
        f'<circle cx="{_x(p)}" cy="{_y(share)}" r="{2 + 6 * (n / most) ** 0.5:.1f}" fill="{colour}" '
        f'fill-opacity="0.45"/>'
        for p, share, n in points
    ]
    return [f'<polyline points="{line}" fill="none" stroke="{colour}"/>', *circles]


def _x(p: float) -> float:
    return round(_LEFT + _SIZE * p, 1)


def _y(share: float) -> float:
    return round(_TOP + _SIZE * (1 - share), 1)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def figures_text(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of the table that a person reads: a figure's name, its value and interval."""
    names = {
        "auc": "AUC",
        "balanced_accuracy": "balanced accuracy, held out",
        "balanced_accuracy_at_half": "balanced accuracy at 0.5",
        "kappa": "Cohen's kappa, held out",
        "kappa_at_half": "Cohen's kappa at 0.5",
        "ece": "calibration error",
        "ece_platt": "calibration error, Platt, held out",
        "ece_isotonic": "calibration error, isotonic, held out",
    }
    return [(text, "{:.3f} ({:.3f} to {:.3f})".format(*figures[name])) for name, text in names.items()]
