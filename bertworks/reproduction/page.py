"""Pages, tables and figures of reproduced tables, made of `results.json` alone: the same file gives the same bytes.

A page shows what agrees with the paper at its top; the paper's table in its own form, with ours under each number; the
differences as a figure, in which the paper's are hollow and ours are filled; and each row's commands, folded. It is one
file that loads nothing and has no scripts. `index.html` holds all tables of a folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, parse_json
from bertworks.report.charts import chart, chart_style, content_hash, escaped, page_file, tick_label, y_axis
from bertworks.report.page import tile
from bertworks.reproduction.claims import BEYOND, VERDICTS, headline
from bertworks.reproduction.tables import TABLES

_WIDTH, _LEFT, _RIGHT = 640, 12, 628  # of a dumbbell figure
_TOP, _ROW, _FOOT = 34, 44, 30
_MOST_TICKS = 8
_COLOURS = """
svg { background: #fff; font-family: sans-serif } text { font-size: 13px; fill: #1f2328 }
text.axis { font-size: 12px; fill: #5f6873 } .grid { stroke: #d5d9de; fill: none } .zero { stroke: #5f6873; fill: none }
.noise { fill: #e7e9ec } .link { stroke: #5f6873; stroke-dasharray: 2 3; fill: none }
.interval { stroke: #2f4b8f; stroke-width: 2; fill: none } .ours { fill: #2f4b8f; stroke: #2f4b8f }
.published { fill: #fff; stroke: #b3541e; stroke-width: 2 } .line { fill: none; stroke-width: 2 }
.c0 { stroke: #2f4b8f } .c1 { stroke: #b3541e } circle.c0, circle.c1 { fill: #fff; stroke-width: 1.5 }
"""
Results = Mapping[str, Any]


def write_pages(out: Path) -> list[Path]:
    """Write the page, table and figures of every `results.json` below a folder, and the page of all; returns pages."""
    found = [results for name in TABLES if (results := _read(out / name / "results.json")) is not None]
    if not found:
        raise UserError(f"{out} has no results.json in a folder of a table; run `bertworks reproduce TABLE` first")
    pages = []
    for results in found:
        folder = out / results["table"]
        pages.append(folder / f"{results['table']}.html")
        _write(pages[-1], table_page(results))
        _write(folder / "table.md", table_markdown(results))
        if curves := _curves(results):
            svg = curves[curves.index("<svg") : curves.index("</svg>")].replace(">", f"><style>{_COLOURS}</style>", 1)
            _write(
                folder / "curves.svg", svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) + "</svg>\n"
            )
        for name, claims in _by_unit(results):
            _write(folder / f"{name}.svg", dumbbell(results, claims, is_alone=True))
            _write_png(folder / f"{name}.png", results, claims)
    _write(out / "index.html", index_page(found))
    return [*pages, out / "index.html"]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found = parse_json(path.read_bytes(), str(path))
    if not isinstance(found, dict) or not {"table", "rows", "claims", "provenance"} <= found.keys():
        raise UserError(f"{path} is not the results of a table; run `bertworks reproduce` again")
    return found


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as stream:
        stream.write(text)


# Pages.


def table_page(results: Results) -> str:
    """Return the page of a table, to be written as UTF-8."""
    return _page(
        kind=f"The paper's tables, scale {results['scale']}: {results['scale_about']}",
        title=results["title"],
        top=results["headline"],
        summary=results["about"],
        tiles=_tiles([results]),
        content=_sections(results),
    )


def index_page(found: Sequence[Results]) -> str:
    """Return the page of all tables of a folder."""
    content = ""
    for results in found:
        name = results["table"]
        content += (
            f'<section class="whole" id="{name}"><h2>{escaped(results["title"])}</h2>'
            f'<p class="headline">{escaped(results["headline"])}</p><p class="note">{escaped(results["about"])}</p>'
            f"{_sections(results)}</section>"
        )
    scales = ", ".join(dict.fromkeys(results["scale"] for results in found))
    return _page(
        kind=f"The paper's tables, scale {scales}",
        title="BERT, measured again",
        top=headline(_total(found)),
        summary=f"{counted(len(found), 'table')}: " + "; ".join(results["title"] for results in found),
        tiles=_tiles(found),
        content=content,
    )


def _page(*, kind: str, title: str, top: str, summary: str, tiles: str, content: str) -> str:
    from bertworks import __version__

    style = page_file("report", "style.css") + chart_style() + page_file("reproduce", "style.css")
    return Template(page_file("reproduce", "page.html")).substitute(
        kind=escaped(kind), title=escaped(title), headline=escaped(top), summary=escaped(summary), tiles=tiles,
        content=content, version=escaped(__version__), style=style, style_hash=content_hash(style),
    )  # fmt: skip


def _total(found: Sequence[Results]) -> dict[str, int]:
    return {verdict: sum(results["counts"][verdict] for results in found) for verdict in VERDICTS}


def _tiles(found: Sequence[Results]) -> str:
    counts = _total(found)
    facts = [results["provenance"] for results in found]
    seeds = ", ".join(dict.fromkeys(f"{one['seeds']} x {one['tunings']}" for one in facts))
    beside = {
        "agrees": "the paper's sign, beyond noise", "disagrees": "the other sign, beyond noise",
        "undecided": "too few seeds or examples to tell",
        "not testable here": "no data, no row, or one that learned nothing",
    }  # fmt: skip
    tiles = [tile(verdict.capitalize(), str(counts[verdict]), beside[verdict]) for verdict in VERDICTS]
    minutes = sum({name: some for one in facts for name, some in one["runs"].items()}.values())  # tables share runs
    devices = ", ".join(dict.fromkeys(device for one in facts for device in one["devices"]))
    tiles.append(
        tile("Device minutes", f"{minutes:,.1f}", f"{devices or 'unknown device'}; of runs side by side each counts")
    )
    tiles.append(tile("Seeds", seeds, "of pre-training x of fine-tuning"))
    return "".join(tiles)


def _sections(results: Results) -> str:
    gates, curves = _gates_part(results), _curves(results)
    figures = "".join(
        f'<figure class="dumbbell">{dumbbell(results, claims)}</figure>' for _, claims in _by_unit(results)
    )
    return (
        f"<section><h3>Sanity gates</h3>{gates}</section>"
        f"<section><h3>The table, with ours under the paper's</h3>{_table_part(results)}</section>"
        + (f'<section><h3>Figure 5</h3><div class="narrow">{curves}</div></section>' if curves else "")
        + (f"<section><h3>Differences, in points</h3>{_legend(results)}{figures}</section>" if figures else "")
        + f"<section><h3>Claims</h3>{_claims_part(results)}</section>"
        f"<section><h3>Provenance</h3>{_provenance_part(results)}</section>"
    )


def _legend(results: Results) -> str:
    is_of_text = any(column["lower_is_better"] for column in results["columns"])
    perplexity = " Of perplexity the examples are batches of held-out text." if is_of_text else ""
    return (
        '<p class="note">Hollow: the paper. Filled: ours, with the 95 % interval over seeds and examples. Grey band: '
        f"{BEYOND:g} times the noise of seeds, within which an effect does not count. The paper's numbers are of "
        f"{escaped(results['published'])} sets.{perplexity}</p>"
    )


def _gates_part(results: Results) -> str:
    titles = {row["id"]: row["title"] for row in results["rows"]}
    columns = {column["id"]: column["title"] for column in results["columns"]}
    failed, passed = "", dict[str, list[str]]()
    for gate in results["gates"]:
        name = f"{columns[gate['column']]} ({gate['limit']:.1f})"
        if gate["below"]:
            below = ", ".join(titles.get(row, row) for row in gate["below"])
            message = escaped(f"{name}: the {gate['gate']} is not beaten by {below}")
            failed += f'<li class="failed">{message}</li>'
        else:
            passed.setdefault(gate["gate"], []).append(name)
    lines = [f"The {gate} is beaten by all rows in {', '.join(some)}" for gate, some in passed.items()]
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines) + failed
    return f'<ul class="gates">{items}</ul>' if items else '<p class="note">Nothing to compare with.</p>'


def _number(of: Mapping[str, Any], value: float, sign: str = "") -> str:
    """Write a score or a difference of a column or a claim: a perplexity with two decimals, points with one."""
    return f"{value:{sign}.{2 if of['lower_is_better'] else 1}f}"


def _table_part(results: Results) -> str:
    columns, has_paper = results["columns"], any(row["paper"] for row in results["rows"])
    head = "".join(f'<th scope="col">{escaped(column["title"])}</th>' for column in columns)
    has_average = results["table"] == "table1"
    head += '<th scope="col">Average</th>' * has_average
    body = ""
    for row in results["rows"]:
        cells = ""
        for column in columns:
            published, ours = row["paper"].get(column["id"]), row["ours"].get(column["id"])
            parts = ""
            if has_paper:
                parts = f'<span class="published">{"–" if published is None else _number(column, published)}</span>'
            if ours:
                its = ours["std"]
                spread = "" if its is None else f' <span class="spread">±{_number(column, its)}</span>'
                parts += f'<span class="ours">{_number(column, ours["mean"])}{spread}</span>'
            elif (why := row["missing"].get(column["id"])) is not None:
                parts += f'<span class="none" title="{escaped(why)}">not here</span>'
            cells += f"<td>{parts}</td>"
        if has_average:
            cells += f"<td>{_average(row)}</td>"
        size = f" ({row['encoder_parameters'] / 1e6:.1f}M)" if row.get("encoder_parameters") else ""
        body += f'<tr class="numbers"><th scope="row">{escaped(row["title"] + size)}</th>{cells}</tr>'
        if row["commands"]:
            summary = f"how it was made, {row['minutes']:.1f} device minutes; commands of its first seeds"
            commands = escaped("\n".join(row["commands"]))
            folded = f"<details><summary>{escaped(summary)}</summary><pre>{commands}</pre></details>"
            body += f'<tr class="unfold"><td colspan="{len(columns) + 1 + has_average}">{folded}</td></tr>'
    return (
        f'<div class="scroll"><table class="paper"><thead><tr><th scope="col">{escaped(results["title"])}</th>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="note">{"Above: the paper. Below: ours" if has_paper else "Ours"}, the mean of all seeds, ± their '
        "standard deviation.</p>"
    )


def _average(row: Mapping[str, Any]) -> str:
    """Return the mean of a row of Table 1, the paper's and ours; where ours has fewer columns, over the same ones."""
    same = [name for name in row["paper"] if name in row["ours"]] or list(row["paper"])
    parts = f'<span class="published">{fmean(row["paper"][name] for name in same):.1f}</span>' if same else ""
    if row["ours"]:
        parts += f'<span class="ours">{fmean(one["mean"] for one in row["ours"].values()):.1f}</span>'
    return parts


def _curves(results: Results) -> str:
    """Draw Figure 5 as the paper does, accuracy against steps, with the deviation of seeds; "" for other tables."""
    if results["table"] != "figure5":
        return ""
    curves: dict[str, list[tuple[float, float]]] = {"MLM": [], "LTR": []}
    spreads: dict[str, list[float]] = {"MLM": [], "LTR": []}
    for row in results["rows"]:
        name, _, share = row["id"].rpartition("-")
        title = {"bert": "MLM", "ltr": "LTR"}.get(name)
        if title and "mnli" in row["ours"]:
            curves[title].append((float(share), row["ours"]["mnli"]["mean"] / 100))
            spreads[title].append((row["ours"]["mnli"]["std"] or 0.0) / 100)
    return chart("MNLI accuracy after fine-tuning", curves, percent=True, x_name="% of steps", spreads=spreads)


def _claims_part(results: Results) -> str:
    columns = {column["id"]: column for column in results["columns"]}
    titles = {row["id"]: row["title"] for row in results["rows"]}
    items = ""
    for one in results["claims"]:
        name = "untestable" if one["verdict"] == "not testable here" else one["verdict"]
        rows = f"{titles.get(one['row'], one['row'])} − {titles.get(one['against'], one['against'])}"
        figures = f"{rows}, {columns[one['column']]['title']}: paper {_paper(one)}"
        if "ours" in one:
            figures += f"; ours {_ours(one)}"
            figures += f"; noise of seeds {one['noise']:.2f}" if one["noise"] is not None else "; noise unknown"
            figures += " (of fine-tuning alone)" if one["noise_is_of_tuning"] else ""
            what = "it is within the margin" if one["margin"] else "the sign agrees"
            figures += f"; probability that {what} {one['probability']:.0%}"
        more = escaped(one["why"]) if one.get("why") else ""
        if one.get("command"):
            text = f"{counted(one['more_seeds'], 'more seed')}, about {one['more_minutes']:,.1f} device minutes"
            more += f"<details><summary>{escaped(text)}</summary><pre>{escaped(one['command'])}</pre></details>"
        items += (
            f'<li class="claim"><span class="mark {name}">{escaped(one["verdict"])}</span><div>'
            f"<p>{escaped(one['says'])} ({escaped(one['where'])})</p>"
            f'<p class="figures">{escaped(figures)}</p>{f"""<div class="figures">{more}</div>""" if more else ""}'
            "</div></li>"
        )
    return f'<ul class="claims">{items}</ul>' if items else '<p class="note">The paper says nothing to test here.</p>'


def _paper(one: Mapping[str, Any]) -> str:
    """Write the paper's difference."""
    if not one["sized"]:
        return f"{'higher' if one['paper'] > 0 else 'lower'}, without a number"
    more = f" (no difference within {one['margin']:g})" if one["margin"] else ""
    return _number(one, one["paper"], "+") + more


def _ours(one: Mapping[str, Any]) -> str:
    """Write our difference with its interval."""
    value, low, high = (_number(one, one[name], "+") for name in ("ours", "low", "high"))
    return f"{value} [{low}, {high}]"


def _provenance_part(results: Results) -> str:
    facts = results["provenance"]
    rows = {
        "version": f"bertworks {facts['version']}",
        "scale": f"{results['scale']}: {results['scale_about']}",
        "seeds": f"{facts['seeds']} of pre-training, {facts['tunings']} of fine-tuning for each",
        "device minutes": f"{facts['minutes']:,.1f}",
        "devices": ", ".join(facts["devices"]) or "unknown",
    }
    if facts["tokens"]:
        rows["tokens of pre-training"] = " to ".join(f"{count:,}" for count in sorted({*facts["tokens"]})[:: max(
            1, len(facts["tokens"]) - 1)])  # fmt: skip
    for task, sizes in facts["data"].items():
        counts = [f"{count:,} {split}" for split, count in sizes.items() if split != "notes" and count]
        rows[task] = "; ".join([", ".join(counts), *sizes["notes"]])
    if facts["overrides"]:
        rows["settings"] = " ".join(f"{stage}.{one}" for stage, some in facts["overrides"].items() for one in some)
    if facts["models"]:
        rows["given models"] = ", ".join(f"{key}: {source}" for key, source in facts["models"].items())
    table = "".join(
        f'<tr><th scope="row">{escaped(key)}</th><td>{escaped(value)}</td></tr>' for key, value in rows.items()
    )
    lines = [f"{kind}: {digest}" for kind, digest in facts["text"].items()]
    lines += [f"{name}: {digest}" for files in facts["files"].values() for name, digest in files.items()]
    left_out = "".join(
        f"<li>{escaped(', '.join(one['columns']))} (rows: {escaped(', '.join(one['rows']))}; "
        f"{counted(len(one['claims']), 'claim')} not testable): {escaped(one['why'])}</li>"
        for one in results["missing"]
    )
    failed = "".join(f"<li>{escaped(one['job'])}: {escaped(one['error'])}</li>" for one in results["failed"])
    return (
        f'<div class="facts"><table><tbody>{table}</tbody></table></div>'
        + (f'<p class="note">Left out:</p><ul class="gates">{left_out}</ul>' if left_out else "")
        + (f'<p class="note">Failed:</p><ul class="gates">{failed}</ul>' if failed else "")
        + f"<details><summary>The command, and the sha256 of all data</summary><pre>{escaped(results['command'])}"
        f'</pre><pre class="files">{escaped(chr(10).join(lines))}</pre></details>'
    )


# Figures.


def _by_unit(results: Results) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the claims with a verdict in points, and those in perplexity, each with the name of its figure."""
    measured = [one for one in results["claims"] if one["verdict"] != "not testable here"]
    for name, is_lower in (("figure", False), ("figure-perplexity", True)):
        if some := [one for one in measured if one["lower_is_better"] == is_lower]:
            yield name, some


def _label(results: Results, one: Mapping[str, Any]) -> str:
    titles = {row["id"]: row["title"].removeprefix("Features: ") for row in results["rows"]}
    column = next(column["title"] for column in results["columns"] if column["id"] == one["column"])
    return f"{titles.get(one['row'], one['row'])} − {titles.get(one['against'], one['against'])}, {column}"


def dumbbell(results: Results, claims: Sequence[Mapping[str, Any]], *, is_alone: bool = False) -> str:
    """Draw differences as SVG: the paper's hollow, ours filled with its interval, the noise of seeds as a grey band.

    Args:
        results: of the table.
        claims: its measured claims, in one unit.
        is_alone: whether it is a file of its own, with its own colours; else the page's style has them.
    """
    values = [0.0, *(one[name] for one in claims for name in ("ours", "low", "high"))]
    values += [one["paper"] for one in claims if one["sized"]]
    values += [sign * BEYOND * one["noise"] for one in claims if one["noise"] for sign in (-1, 1)]
    axis = y_axis(values, _MOST_TICKS)
    height = _TOP + _ROW * len(claims) + _FOOT
    bottom = height - _FOOT

    def x(value: float) -> float:
        return axis.position(value, _LEFT + 8, _RIGHT - 8)

    parts = []
    for tick in axis.ticks:
        style = "zero" if abs(tick) < axis.step / 2 else "grid"
        parts.append(f'<path class="{style}" d="M{x(tick):.1f} {_TOP - 6}V{bottom}"/>')
        parts.append(
            f'<text class="axis" x="{x(tick):.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{escaped(tick_label(tick, axis.step))}</text>"
        )
    for number, one in enumerate(claims):
        top = _TOP + _ROW * number
        y = top + 30
        if one["noise"]:
            band = BEYOND * one["noise"]
            parts.append(
                f'<rect class="noise" x="{x(-band):.1f}" y="{y - 8}" width="{x(band) - x(-band):.1f}" height="16"/>'
            )
        parts.append(f'<text x="{_LEFT}" y="{top + 14}">{escaped(_label(results, one))}</text>')
        if one["sized"]:
            parts.append(f'<path class="link" d="M{x(one["paper"]):.1f} {y}H{x(one["ours"]):.1f}"/>')
        parts.append(f'<path class="interval" d="M{x(one["low"]):.1f} {y}H{x(one["high"]):.1f}"/>')
        words = f"ours, with the 95 % interval: {_ours(one)}"
        parts.append(
            f'<circle class="ours" cx="{x(one["ours"]):.1f}" cy="{y}" r="5"><title>{escaped(words)}</title></circle>'
        )
        if one["sized"]:
            parts.append(
                f'<circle class="published" cx="{x(one["paper"]):.1f}" cy="{y}" r="5"><title>'
                f"paper {_paper(one)}</title></circle>"
            )
    unit = "perplexity" if claims[0]["lower_is_better"] else "points"
    parts.append(f'<text class="axis" x="{_LEFT}" y="16">difference in {unit}: hollow the paper, filled ours</text>')
    label = escaped(f"{results['title']}: differences in {unit}, the paper's and ours")
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}"'
    if is_alone:
        head += f' xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        return f"{head}><style>{_COLOURS}</style>{''.join(parts)}</svg>\n"
    return f"{head}>{''.join(parts)}</svg>"


def _write_png(path: Path, results: Results, claims: Sequence[Mapping[str, Any]]) -> None:
    """Draw the same as a PNG, where matplotlib is installed."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.4 * len(claims)))
    for number, one in enumerate(claims):
        if one["noise"]:
            axes.barh(number, 2 * BEYOND * one["noise"], left=-BEYOND * one["noise"], height=0.5, color="#e7e9ec")
        axes.plot([one["low"], one["high"]], [number, number], color="#2f4b8f", linewidth=2)
    rows = range(len(claims))
    axes.plot([one["ours"] for one in claims], rows, "o", color="#2f4b8f", label="ours")
    sized = [(one["paper"], row) for row, one in zip(rows, claims, strict=True) if one["sized"]]
    axes.plot(
        *zip(*sized, strict=True) if sized else ([], []), "o", markerfacecolor="white", color="#b3541e", label="paper"
    )
    axes.axvline(0, color="#5f6873", linewidth=1)
    axes.set_yticks(list(rows), [_label(results, one) for one in claims])
    axes.invert_yaxis()
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


# Markdown.


def table_markdown(results: Results) -> str:
    """Return a table as Markdown: the paper's number / ours ± the deviation of seeds, and the claims with verdicts."""
    columns = results["columns"]
    lines = [f"# {results['title']}", "", f"{results['headline']}.", "", results["about"], ""]
    lines += [f"| | {' | '.join(column['title'] for column in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in results["rows"]:
        cells = []
        for column in columns:
            published, ours = row["paper"].get(column["id"]), row["ours"].get(column["id"])
            left = "–" if published is None else _number(column, published)
            right = "–"
            if ours:
                spread = "" if ours["std"] is None else f" ± {_number(column, ours['std'])}"
                right = f"**{_number(column, ours['mean'])}**{spread}"
            cells.append(f"{left} / {right}")
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    lines += ["", "The paper / ours, the mean of all seeds ± their standard deviation.", ""]
    lines += ["| claim | rows | paper | ours [95 %] | verdict |", "|---|---|---|---|---|"]
    for one in results["claims"]:
        ours = _ours(one) if "ours" in one else "–"
        lines.append(f"| {one['says']} | {_label(results, one)} | {_paper(one)} | {ours} | {one['verdict']} |")
    facts = results["provenance"]
    lines += ["", f"Scale {results['scale']}, {facts['seeds']} x {facts['tunings']} seeds, {facts['minutes']:,.1f} "
                  f"device minutes, bertworks {facts['version']}: `{results['command']}`"]  # fmt: skip
    return "\n".join(lines) + "\n"
