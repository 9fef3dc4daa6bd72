"""Pieces of HTML that the parts of the page are made of."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

LEGEND = 10
"""With more arms than this a figure has no legend: the page's switches, which show their colours, are one."""


def drawn(figure: go.Figure | None, otherwise: str) -> str:
    """A figure, or what to run to have one. The page's script draws it."""
    if figure is None:
        return f'<p class="soft">{otherwise}</p>'
    if sum(trace.showlegend is not False for trace in figure.data) > LEGEND:
        figure = go.Figure(figure).update_layout(showlegend=False)
    # Inside a script element only "<" could be taken for markup.
    plot = str(figure.to_json()).replace("<", "\\u003c")
    return f'<div class="figure" data-plot><script type="application/json">{plot}</script></div>'


def grid(head: list[str], lines: list[str], css: str = "") -> str:
    """A table; ``css`` is a class."""
    columns = "".join(f"<th>{escape(h)}</th>" for h in head)
    css += " noted" if head[-1] in ("note", "message") else ""
    table = f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def text_row(values: list[str]) -> str:
    """A row of a table."""
    return "<tr>" + "".join(f"<td>{escape(v)}</td>" for v in values) + "</tr>"


def bullets(items: list[str], css: str) -> str:
    """A list; empty where there is nothing to say."""
    return f'<ul class="{css}">' + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>" if items else ""


def dot(colour: str) -> str:
    """An arm's colour."""
    return f'<span class="dot" style="background:{colour}"></span>'


def code(text: str) -> str:
    """A command."""
    return f"<code>{escape(text)}</code>"
