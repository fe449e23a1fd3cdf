"""How the page looks: one style sheet for narrow and wide, light and dark screens, and for paper.

Owns the values of the colours that bert_jax/reports/page/svg.py names. No font is loaded: letters
are those that the reader's machine has.
"""

from __future__ import annotations

_LIGHT = {
    'ground': '#ffffff',
    'raised': '#f5f6f8',
    'text': '#1c1e21',
    'soft': '#5a6069',
    'line': '#d9dce1',
    'ink': '#444a52',
    'grid': '#e3e5e9',
    'common': '#707070',
    'link': '#0b62a4',
    'good': '#007a5a',
    'cell': '11, 98, 164',
    'run-0': '#0b62a4',
    'run-1': '#c44e00',
    'run-2': '#007a5a',
    'run-3': '#a8327f',
    'run-4': '#6b4fa0',
    'run-5': '#8a6a00',
    'run-6': '#b3263a',
    'run-7': '#4d6b78',
}
_DARK = {
    'ground': '#15181c',
    'raised': '#1e2228',
    'text': '#e7e9ec',
    'soft': '#a2a9b3',
    'line': '#363c45',
    'ink': '#b6bcc6',
    'grid': '#2b3038',
    'common': '#9a9a9a',
    'link': '#6cb8f0',
    'good': '#3fcfa0',
    'cell': '108, 184, 240',
    'run-0': '#6cb8f0',
    'run-1': '#ff9c57',
    'run-2': '#3fcfa0',
    'run-3': '#ee8fcf',
    'run-4': '#b9a2f0',
    'run-5': '#dcc050',
    'run-6': '#ff8793',
    'run-7': '#a5c3cf',
}


def _variables(values: dict[str, str]) -> str:
    return ' '.join(f'--{name}: {value};' for name, value in values.items())


SHEET = f"""
:root {{ color-scheme: light dark; {_variables(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{
  margin: 0 auto; padding: 1.2rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 84rem;
  background: var(--ground); color: var(--text); font: 1rem/1.5 system-ui, sans-serif;
}}
h1 {{ font-size: 1.7rem; margin: 0.5rem 0 0.2rem; }}
h2 {{ font-size: 1.25rem; margin: 2.6rem 0 0.6rem; padding-top: 0.8rem;
  border-top: 1px solid var(--line); }}
h3 {{ font-size: 1.05rem; margin: 1.6rem 0 0.4rem; }}
h1, h2, h3, th, td, li, figcaption, .note {{ overflow-wrap: break-word; }}
p, .note {{ max-width: 46rem; }}
.note, caption, figcaption small {{ color: var(--soft); font-size: 0.88rem; }}
nav ul, .legend {{ display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; padding: 0; margin: 0.4rem 0;
  list-style: none; }}
a {{ color: var(--link); }}
.charts {{ display: grid; gap: 1.4rem 1.8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); }}
figure {{ margin: 0; min-width: 0; }}
figcaption {{ font-weight: 600; }}
figcaption small {{ font-weight: 400; }}
svg {{ display: block; width: 100%; height: auto; }}
svg * {{ stroke-linejoin: round; }}
svg text {{ font-family: system-ui, sans-serif; fill: var(--ink); }}
.legend {{ font-size: 0.85rem; }}
.key {{ display: inline-block; width: 1.4em; height: 0; border-top: 3px solid; margin-right: 0.4em;
  vertical-align: middle; }}
.key.guess {{ border-top-style: dotted; }}
.key.thin {{ border-top-width: 1px; }}
.scroll {{ overflow-x: auto; margin: 0.5rem 0; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; padding: 0.2rem 0; }}
caption span {{ display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }}
th, td {{ padding: 0.28rem 0.7rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); }}
td {{ white-space: nowrap; }}
th:first-child, .words td, .words th {{ text-align: left; }}
.words tbody th {{ min-width: 11rem; }}
tbody th {{ font-weight: 500; min-width: 7rem; }}
thead th {{ color: var(--soft); font-weight: 600; overflow-wrap: normal; }}
.matrix td {{ text-align: center; }}
.matrix td span {{ display: block; padding: 0.1rem 0.4rem; }}
details {{ margin: 0.5rem 0; }}
summary {{ cursor: pointer; color: var(--link); font-size: 0.9rem; }}
pre {{ background: var(--raised); border: 1px solid var(--line); padding: 0.7rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; margin: 0.4rem 0; }}
mark {{ background: none; color: var(--link); font-weight: 700; }}
.right {{ color: var(--good); font-weight: 700; }}
@media print {{ details > * {{ display: block; }} .scroll {{ overflow: visible; }} }}
"""
