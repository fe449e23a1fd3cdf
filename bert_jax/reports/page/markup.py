"""HTML as a tree, so that no text of a user's is ever read as markup.

Owns the elements that several parts of the page have alike: tables and what is folded. It must not
know runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

Element = ElementTree.Element
Child = Element | str


def element(tag: str, *children: Child, **attributes: str) -> Element:
    """<tag attributes>children</tag>; an attribute may end in an underscore that its name has not
    (class_).
    """
    made = Element(tag, {name.rstrip('_').replace('_', '-'): v for name, v in attributes.items()})
    for child in children:
        if not isinstance(child, str):
            made.append(child)
        # Text stands behind the child before it, or, where there is none, inside the element.
        elif len(made):
            made[-1].tail = (made[-1].tail or '') + child
        else:
            made.text = (made.text or '') + child
    return made


def table(head: Sequence[str], rows: Iterable[Sequence[Child]], caption: str) -> Element:
    """A table that scrolls by itself where it is wider than the page; the first cell of a row is
    its head.
    """
    top = element('tr', *(element('th', cell, scope='col') for cell in head))
    lines = [
        element('tr', element('th', first, scope='row'), *(element('td', cell) for cell in rest))
        for first, *rest in rows
    ]
    made = element(
        'table',
        element('caption', element('span', caption)),
        element('thead', top),
        element('tbody', *lines),
    )
    # A keyboard can scroll only what it can reach.
    return element('div', made, class_='scroll', tabindex='0', role='region', aria_label=caption)


def folded(summary: str, *children: Child) -> Element:
    """What is there when it is asked for."""
    return element('details', element('summary', summary), *children)


def text_of(root: Element) -> str:
    """The document as text."""
    return '<!DOCTYPE html>\n' + ElementTree.tostring(root, encoding='unicode', method='html')
