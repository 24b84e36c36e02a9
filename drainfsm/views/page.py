"""What every HTML file of a view is made of: one page that works from disk, nothing fetched.

What a log holds is not trusted: everything that comes from it goes through ``escaped``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from drainfsm.core.text import printable

TEXT_MAX = 2_000
"""Characters of one value that are shown."""

STYLE = """
:root{color-scheme:light dark;--line:#8886;--good:#187a4d;--bad:#b3261e;--bar:#3b7fb6}
@media(prefers-color-scheme:dark){:root{--good:#4cc38a;--bad:#ff8a80;--bar:#6cb2e8}}
body{font:16px/1.5 system-ui,sans-serif;margin:0}main{max-width:60rem;margin:auto;padding:1rem}
table{border-collapse:collapse;margin:.5rem 0;width:100%}th,td{text-align:left;vertical-align:top;
border-bottom:1px solid var(--line);padding:.2rem .6rem .2rem 0}td{overflow-wrap:anywhere}
th[scope=row]{width:14rem}
article{border-top:3px solid var(--line);margin-top:2rem}.bad{color:var(--bad);font-weight:600}
.good{color:var(--good);font-weight:600}pre{white-space:pre-wrap}.plot{overflow-x:auto}svg{width:100%;min-width:34rem;height:auto}
svg text{font:12px system-ui,sans-serif;fill:currentColor}
"""


def document(title: str, body: str) -> str:
    """``body`` is markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escaped(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Of text. Without heads the first column is the heading of its row."""
    head = "".join(f"<th scope=col>{escaped(one)}</th>" for one in heads)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in others)
        tag = "td" if heads else "th scope=row"
        lines.append(f"<tr><{tag}>{escaped(first)}</{tag[:2]}>{cells}</tr>")
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(lines)}</table>"


def drawing(label: str, marks: str, *, width: int, height: int) -> str:
    """An SVG of its own. ``marks``: markup. Narrow screens scroll it, also by keyboard."""
    return (
        f'<div class="plot" tabindex="0" role="group" aria-label="{escaped(label)}">'
        f'<svg role="img" aria-label="{escaped(label)}" viewBox="0 0 {width} {height}">'
        f"{marks}</svg></div>"
    )


def escaped(text: str) -> str:
    return html.escape(printable(text, chars_max=TEXT_MAX))
