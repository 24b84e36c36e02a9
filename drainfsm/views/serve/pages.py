"""The HTML of the dashboard's pages: shells that scripts fill, and postmortems that need none."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from drainfsm.views.page import escaped
from drainfsm.views.postmortem import Postmortem
from drainfsm.views.postmortem_text import article

NAME = "drainfsm"


def shell(
    title: str, body: str, *, script: str = "", crumbs: Sequence[tuple[str, str]] = ()
) -> str:
    """``body``: markup. ``crumbs``: where the page is, as name and address."""
    trail = "".join(f'<li><a href="{href}">{escaped(name)}</a></li>' for name, href in crumbs)
    load = f'<script type="module" src="/static/{script}"></script>' if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)} · {NAME}</title>\n"
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">\n'
        f'<link rel="stylesheet" href="/static/style.css">\n{load}\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><nav aria-label="Pages"><ol><li><a href="/">{NAME}</a></li>{trail}</ol></nav>'
        '<p id="feed" role="status"></p></header>\n'
        f'<main id="main" tabindex="-1"><h1>{escaped(title)}</h1>\n{body}\n</main>\n'
        "<noscript><p>The live pages need JavaScript; postmortems do not.</p></noscript>\n"
        "</body>\n</html>\n"
    )


def fleet_page() -> str:
    body = (
        '<p id="summary" class="summary"></p>'
        '<p><label>Show only jobs whose name holds <input id="filter" type="search" '
        'autocomplete="off" spellcheck="false"></label></p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Jobs"><table id="jobs">'
        "<caption>Jobs: open drains first, the nearest deadline at the top</caption><thead><tr>"
        "<th scope=col>Job</th><th scope=col>State</th><th scope=col>To the deadline</th>"
        "<th scope=col>Last commit</th><th scope=col>Ranks</th><th scope=col>Restarts healthy</th>"
        "<th scope=col>Sources blind</th></tr></thead><tbody></tbody></table></div>"
        '<p id="empty" hidden>No job has written a record yet.</p>'
    )
    return shell("Jobs", body, script="fleet.js")


def job_page(job_id: str) -> str:
    body = (
        '<p id="standing" class="summary"></p>'
        '<section id="drain" aria-labelledby="drain-title" hidden><h2 id="drain-title">Drain</h2>'
        '<p id="countdown" role="timer" aria-live="off"></p><p id="verdict"></p>'
        '<div id="gantt" class="plot" tabindex="0" role="group" '
        'aria-label="Phases against the deadline"></div>'
        '<div class="columns"><div><h3>Budget</h3><table id="budget"><thead><tr>'
        "<th scope=col>Term</th><th scope=col>Needs</th><th scope=col>From</th></tr></thead>"
        "<tbody></tbody></table></div>"
        '<div><h3>Ranks</h3><p id="ranks-told"></p>'
        '<canvas id="ranks" tabindex="0" role="img" aria-describedby="ranks-told rank-chosen"'
        ' aria-label="Ranks by state" hidden></canvas>'
        '<p id="rank-chosen" aria-live="polite"></p><ul id="late"></ul></div></div>'
        '<h3>Notices</h3><table id="notices"><thead><tr><th scope=col>Notice</th>'
        "<th scope=col>Class</th><th scope=col>Cause</th><th scope=col>Deadline (UTC)</th></tr>"
        "</thead><tbody></tbody></table></section>"
        '<section id="blind" hidden><h2>Sources that cannot tell</h2><ul></ul></section>'
        '<section><h2>Drains</h2><p id="no-drains">None is over.</p>'
        '<table id="drains" hidden><thead><tr><th scope=col>Drain</th>'
        "<th scope=col>Began (UTC)</th><th scope=col>Cause</th><th scope=col>Outcome</th>"
        "<th scope=col>Left before the deadline</th></tr></thead><tbody></tbody></table></section>"
        '<section><h2>Events</h2><p><label>Show <select id="kinds"><option value="decisions">'
        'decisions</option><option value="all">all</option><option value="notices">notices and '
        "sources</option></select></label></p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Events, the newest first">'
        '<table id="events"><thead><tr><th scope=col>Time (UTC)</th><th scope=col>Attempt</th>'
        "<th scope=col>Event</th><th scope=col>What it says</th></tr></thead><tbody></tbody>"
        "</table></div></section>"
        '<p id="unknown" hidden>This log has no record of a job of that name (yet).</p>'
    )
    return shell(job_id, body, script="job.js", crumbs=((job_id, job_path(job_id)),))


def job_path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def drain_page(found: Postmortem, *, what_if: str, problem: str, number: int) -> str:
    """``problem``: what is wrong with ``what_if``."""
    job, here = job_path(found.job_id), f"{job_path(found.job_id)}/{found.epoch}/{number}"
    told = f'<p class="bad" role="alert">{escaped(problem)}</p>' if problem else ""
    body = (
        f'<form method="get" action="{here}"><p><label>What if <input name="what_if" '
        f'value="{escaped(what_if)}" placeholder="grace=60,exit_margin_ms=2000" '
        'autocomplete="off" spellcheck="false"></label> <button>Evaluate again</button></p>'
        f"{told}</form>"
        '<section id="replay" aria-labelledby="replay-title" hidden>'
        '<h2 id="replay-title">Replay</h2><p><label>Event <input id="position" type="range" '
        'min="0" value="0"></label> <button id="play" type="button">Play</button></p>'
        '<p id="moment" aria-live="polite"></p><div id="gantt" class="plot" tabindex="0" '
        'role="group" aria-label="Phases so far"></div></section>'
        f"{article(found)}"
    )
    crumbs = ((found.job_id, job), (f"attempt {found.epoch}, drain {number}", here))
    title = f"{found.job_id}, attempt {found.epoch}, drain {number}"
    return shell(title, body, script="drain.js", crumbs=crumbs)


def problem_page(title: str, told: str) -> str:
    return shell(title, f'<p class="bad">{escaped(told)}</p><p><a href="/">All jobs</a></p>')
