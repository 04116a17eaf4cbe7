"""The style of the pages, which stands in each of them.

A table of a section that is too narrow for it is a list of cards: a row's name, then its figures, each with
the label of its column, without those that are zero.
"""

import base64
import hashlib
from typing import Final

BROAD_COLUMNS: Final = 5
"""A table with so many columns is broad: it needs more room."""
_CARDS: Final = """
@container (max-width: WIDTH) {
  TABLE thead { display: none }
  TABLE, TABLE tbody, TABLE tfoot, TABLE tr { display: block }
  TABLE tr { border-bottom: 1px solid var(--line); padding: .35rem 0 }
  TABLE tbody th, TABLE tfoot th { display: block; border: 0; padding: 0; min-width: 0 }
  TABLE td {
    display: inline-block; border: 0; padding: 0 1rem 0 0; text-align: left; overflow-wrap: anywhere;
    white-space: normal;
  }
  TABLE td::before { content: attr(data-label) " "; color: var(--faint); font-size: .87rem }
  TABLE .zero { display: none }
}
"""
STYLE: Final = """
:root {
  color-scheme: light dark; --ground: #fff; --text: #1c2430; --faint: #56616e; --line: #dfe3e8;
  --link: #1f5c99; --bar: #2f6fb3; --axis: #8a94a0; --well: #17693a; --alarm: #b3261e;
  --alarm-ground: #fdecea; --code: #f1f3f5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181d; --text: #dde3ea; --faint: #a3adb8; --line: #2c333b; --link: #7fb2e5; --bar: #5b97d3;
    --axis: #5f6974; --well: #6fce97; --alarm: #f2867f; --alarm-ground: #3a1c1a; --code: #20262d;
  }
}
* { box-sizing: border-box }
body {
  font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 112rem; padding: 1rem;
  color: var(--text); background: var(--ground); overflow-wrap: anywhere;
}
h1 { font-size: 1.35rem; margin: 0 }
h2 { font-size: 1.05rem; margin: 0 0 .4rem }
h3 { font-size: .95rem; margin: .8rem 0 .2rem }
p { margin: .3rem 0 }
ul { margin: .3rem 0; padding-left: 1.2rem }
a { color: var(--link) }
small, .note { color: var(--faint); font-size: .87rem }
header { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; align-items: baseline; margin-bottom: 1rem }
header p, header ul { margin: 0 }
nav ul { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; list-style: none; padding: 0 }
main {
  outline: 0; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 40rem), 1fr));
  gap: 1.4rem 2.5rem; overflow-anchor: none;
}
section { container-type: inline-size; min-width: 0 }
.wide { grid-column: 1 / -1 }
.well { color: var(--well) }
.wrong, #told:not(:empty) {
  background: var(--alarm-ground); border-left: 4px solid var(--alarm); padding: .4rem .8rem;
  margin: .4rem 0;
}
#told:not(:empty) { position: fixed; inset: auto 0 0; margin: 0 }
dl { display: flex; flex-wrap: wrap; gap: .5rem 1.8rem; margin: .3rem 0 }
dt { color: var(--faint); font-size: .87rem }
dd { margin: 0; font-size: 1.1rem; font-weight: 600 }
form { display: flex; flex-wrap: wrap; gap: .4rem .8rem; align-items: end; margin: .4rem 0 }
label { font-size: .87rem; color: var(--faint) }
input, select, button {
  font: inherit; color: var(--text); background: var(--code); border: 1px solid var(--axis);
  border-radius: 4px; padding: .15rem .5rem; max-width: 100%;
}
input, select { display: block }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td {
  text-align: right; font-weight: 400; padding: .2rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: normal;
}
td { white-space: nowrap }
th:first-child { text-align: left; padding-left: 0 }
thead th { font-size: .87rem; color: var(--faint) }
tbody th, tfoot th { overflow-wrap: anywhere; min-width: 15rem }
tfoot * { font-weight: 600 }
th[aria-sort] a { font-weight: 700; color: var(--text) }
th.text, td.text { text-align: left; white-space: normal }
code, pre { background: var(--code); border-radius: 3px; padding: 0 .25rem }
pre { white-space: pre-wrap; padding: .5rem .7rem; margin: .4rem 0 }
figure { margin: .4rem 0 }
svg { display: block; width: 100%; height: 8rem; border-bottom: 1px solid var(--axis) }
rect { fill: var(--bar) }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--faint) }
.events { list-style: none; padding: 0 }
.events li { margin: .35rem 0 }
@container (max-width: 26rem) {
  .axis span:nth-child(even) { display: none }
}
""" + "".join(
    _CARDS.replace("WIDTH", width).replace("TABLE", table)
    for width, table in (("58rem", ".broad"), ("34rem", "table"))
)
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Names come from clients: even one that escaped its text could neither run a script nor load anything.
CONTENT_POLICY: Final = (
    f"default-src 'none'; img-src data:; script-src 'self'; connect-src 'self'; style-src 'sha256-{_HASH}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
