"""A page as one self-contained HTML file: style and pictures inline, no script, nothing fetched from anywhere.

It is well-formed XML as well, so that anything can read it. Dark, light and paper are chosen by the reader's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.report.markup import escape
from gpuchaos_stream.report.page import Block, Cell, Heading, Page, Picture, Table, Words

#: What the browser may do with the file: draw its own style, and nothing else.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

#: Characters of a cell that stays on one line.
_SHORT: Final = 14

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f3f5f7;
--good:#116329;--bad:#a40e26;--warn:#7d4e00;--fault:#8250df;--charged:#bc4c00;--unexplained:#0550ae;--halt:#a40e26}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9aa4ae;--line:#3d444d;--soft:#161b22;
--good:#56d364;--bad:#ff8a80;--warn:#e3b341;--fault:#c297ff;--charged:#ffa657;--unexplained:#79c0ff;--halt:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px}
h1{font-size:1.6em;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.2em;margin:32px 0 8px}
p{margin:8px 0;max-width:80ch;overflow-wrap:anywhere}
.badge{display:inline-block;border:2px solid;border-radius:6px;padding:0 10px;font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:8px 0}
caption{text-align:left;color:var(--dim);padding:4px 0}
th,td{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-bottom:1px solid var(--line)}
th,td{overflow-wrap:break-word}.short{white-space:nowrap}
th{font-weight:600}thead th{color:var(--dim);white-space:nowrap}tbody th{min-width:8em}
.share{display:block;width:120px;height:8px;margin-top:4px}
.share rect{fill:var(--line)}.share .in{fill:var(--good)}.share .over{fill:var(--bad)}
figure{margin:12px 0;overflow-x:auto}figcaption{color:var(--dim)}
figure svg{width:100%;min-width:720px;height:auto;background:var(--soft);border-radius:6px}
svg text{font:12px system-ui,sans-serif;fill:var(--fg)}svg .tick{fill:var(--dim);font-size:11px}
.grid{stroke:var(--line)}.mark{stroke:var(--fg);stroke-dasharray:3 3}.objective{stroke:var(--fg);stroke-width:3}
.bar.fault{fill:var(--fault)}.bar.charged{fill:var(--charged)}.bar.halt{fill:var(--halt)}
.bar.unexplained{fill:none;stroke:var(--unexplained);stroke-width:2}
.bar.met{fill:var(--good)}.bar.missed{fill:var(--bad)}.hold{fill:none;stroke:var(--good);stroke-dasharray:4 2}
.curve{fill:none;stroke:var(--unexplained);stroke-width:1.5}.point{fill:var(--unexplained)}
.bound{stroke:var(--fg);stroke-dasharray:6 3}.under{fill:var(--fault);opacity:.15}
.open{fill:none;stroke:var(--bg);stroke-width:2}
.box{fill:var(--bg);stroke:var(--line);stroke-width:1.5}.box.target{stroke:var(--fault)}
.box.hurt{stroke:var(--charged)}.box.unknown{stroke:var(--bad);stroke-dasharray:4 3}.tie{fill:none;stroke:var(--dim)}
footer{color:var(--dim);margin-top:32px;border-top:1px solid var(--line);padding-top:8px}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#999;--soft:#fff}main{max-width:none;padding:0}
figure,tr,h2{break-inside:avoid}h2{break-after:avoid}figure svg{min-width:0}
body{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


def html(page: Page) -> str:
    """The page as HTML. Everything that it holds is escaped but the pictures, which are escaped where they are made."""
    body = "".join(line for block in page.blocks for line in _block(block))
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>'
        f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f"<header><h1>{escape(page.title)}</h1>"
        f'<p><span class="badge {page.badge.tone}">{escape(page.badge.text)}</span></p>'
        f"<p>{escape(page.lead)}</p></header>\n{body}"
        "<footer>GPUChaos Stream. Times are seconds of event time since the first injection.</footer>"
        "</main></body></html>\n"
    )


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"<h2>{escape(block.text)}</h2>\n"
    elif isinstance(block, Words):
        yield f'<p class="{block.tone}">{escape(block.text)}</p>\n'
    elif isinstance(block, Picture):
        yield f"<figure>{block.svg}<figcaption>{escape(block.title)}</figcaption></figure>\n"
    else:
        yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    yield f'<div class="wide"><table><caption>{escape(table.caption)}</caption><thead><tr>'
    yield from (f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    yield "</tr></thead><tbody>\n"
    for first, *rest in table.rows:
        yield f'<tr><th scope="row" class="{first.tone}">{escape(first.text)}</th>'
        yield from (f'<td class="{_kind(cell)}">{escape(cell.text)}{_share(cell)}</td>' for cell in rest)
        yield "</tr>\n"
    yield "</tbody></table></div>\n"


def _kind(cell: Cell) -> str:
    """Its tone, and whether it is a number or a word that must not be torn over two lines."""
    return f"{cell.tone} short" if len(cell.text) <= _SHORT else cell.tone


def _share(cell: Cell) -> str:
    """A bar of the limit: full is the limit, what is over it is another colour and longer."""
    if cell.share is None:
        return ""
    width = round(min(cell.share, 1.5) * 80, 1)
    kind = "over" if cell.share > 1 else "in"
    bar = f'<rect width="80" height="8"/><rect class="{kind}" width="{width}" height="8"/>'
    return f'<svg class="share" viewBox="0 0 120 8" aria-hidden="true">{bar}</svg>'
