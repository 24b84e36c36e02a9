"""What drills found: a table for people, HTML for a page, JUnit for a CI."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from drainfsm.core.text import printable, span
from drainfsm.drills.criteria import CRITERIA
from drainfsm.drills.run import Judged

MARKS = {True: "pass", False: "FAIL", None: "-"}
SHORT = ("cordon", "one decision", "complete", "in budget", "valid step")
"""Headings of the criteria, in their order."""

HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>drainfsm drills</title>
<style>body{font:15px system-ui;margin:2em auto;max-width:70em}table{border-collapse:collapse}
td,th{padding:.3em .7em;border-bottom:1px solid #ccc;text-align:left}
.FAIL{color:#b00;font-weight:bold}
.pass{color:#070}code{white-space:pre-wrap}</style><h1>Drills</h1>
"""


def verdict(judged: Judged) -> str:
    return "pass" if judged.passed else "FAIL"


def table_text(found: Sequence[Judged]) -> Iterator[str]:
    yield f"{'scenario':15}{'save':11}{'took':>9} {'window':>9}  " + "  ".join(SHORT) + "  verdict"
    for one in found:
        took = span(one.took_ms) if one.took_ms is not None else "-"
        window = span(one.window_ms) if one.window_ms is not None else "-"
        marks = "  ".join(
            f"{MARKS[one.criteria[name]]:{len(short)}}"
            for name, short in zip(CRITERIA, SHORT, strict=True)
        )
        late = "" if one.struck else " (the save was quicker than the fault)"
        yield (
            f"{one.scenario:15}{one.decision:11}{took:>9} {window:>9}  {marks}  "
            f"{verdict(one)}{late}"
        )
        yield from (f"  {line}" for line in (*_faults(one), *_notes(one)))
    left = sum(len(one.left_over) for one in found)
    if left:
        yield f"{left} generation(s) of saves that were given up lie in the stores: `drainfsm gc`"
    yield f"{sum(one.passed for one in found)} of {len(found)} passed"


def _faults(one: Judged) -> Iterator[str]:
    for name, held in one.criteria.items():
        if held is False:
            yield f"FAIL: {CRITERIA[name]}"
    yield from (f"FAIL: {wrong}" for wrong in one.rules_broken)
    yield from (printable(line) for line in one.problem.splitlines())


def _notes(one: Judged) -> Iterator[str]:
    if one.note:
        yield f"note: {printable(one.note)}"


def junit_xml(found: Sequence[Judged]) -> str:
    failed = sum(not one.passed for one in found)
    lines = ['<?xml version="1.0" encoding="utf-8"?>']
    lines.append(f'<testsuite name="drainfsm drill" tests="{len(found)}" failures="{failed}">')
    for one in found:
        head = f"<testcase classname={quoteattr('drill')} name={quoteattr(one.scenario)} "
        lines.append(f'{head}time="{one.duration_s}">')
        if not one.passed:
            faults = [printable(fault) for fault in _faults(one)]
            lines.append(f"<failure message={quoteattr('; '.join(faults[:3]))}>")
            lines.append(escape("\n".join(faults)) + "</failure>")
        told = "".join(f"{at.at_unix_ms} epoch {at.epoch} {at.kind}\n" for at in one.timeline)
        lines.append(f"<system-out>{escape(told)}</system-out></testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def html_page(found: Sequence[Judged]) -> str:
    heads = "".join(f"<th>{name}" for name in ("scenario", "save", "took", "window", *SHORT, ""))
    rows = []
    for one in found:
        cells = [html.escape(one.title), one.decision]
        cells += ["-" if ms is None else span(ms) for ms in (one.took_ms, one.window_ms)]
        row = "".join(f"<td>{cell}" for cell in cells)
        row += "".join(
            f'<td class="{MARKS[one.criteria[name]]}">{MARKS[one.criteria[name]]}'
            for name in CRITERIA
        )
        rows.append(f'<tr>{row}<td class="{verdict(one)}">{verdict(one)}')
    return f"{HEAD}<table><tr>{heads}{''.join(rows)}</table>\n" + "".join(map(_timeline, found))


def _timeline(one: Judged) -> str:
    begun = one.timeline[0].at_unix_ms if one.timeline else 0
    lines = [f"{at.at_unix_ms - begun:>8} ms  {at.epoch}  {at.kind}" for at in one.timeline]
    told = html.escape("\n".join([*_faults(one), *_notes(one), *lines]))
    return f"<details><summary>{html.escape(one.scenario)}</summary><code>{told}</code></details>\n"
