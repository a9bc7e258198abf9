"""What the pages name exists: code, settings, rows, links."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL = [ROOT / "README.md", *PAGES]
ROWS = {path.stem for path in (ROOT / "configs" / "algo").glob("*.yaml")}
ANYWHERE = "*"
OWNERS = {"FinetuneConfig": "finetune", "LoopConfig": "loop", "EvaluationConfig": "evaluation"}
SETTINGS = ("algo", *OWNERS.values())
FILES = (".md", ".yaml", ".json", ".jsonl", ".html")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def modules() -> dict[str, set[str]]:
    """Every way of writing a module -> its names, with ``Class.member``: "losses/gae" and "gae" both name one."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in ("robopo", "sims", "hardware"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names = members(path)
            for start in range(len(parts)):
                found["/".join(parts[start:])] |= names
            found[ANYWHERE] |= {name for name in names if name[:1].isupper()}  # classes and their members
    return found


def members(path: Path) -> set[str]:
    """Top-level names, and the methods, fields and attributes of classes."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for name in assigned(node):
            names.add(name)
            if isinstance(node, ast.ClassDef):
                names |= {f"{name}.{inner}" for part in node.body for inner in assigned(part)}
                names |= {
                    f"{name}.{part.attr}"
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                }
    return names


def assigned(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.TypeAlias(name=ast.Name(id=name)):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return []


@cache
def settings() -> set[str]:
    """``algo.x.y`` of every row, and the fields behind the other settings of robopo train."""
    found: set[str] = set()
    for path in (ROOT / "configs" / "algo").glob("*.yaml"):
        found |= set(paths(yaml.safe_load(path.read_text(encoding="utf-8")), "algo"))
    for names in modules().values():
        for name in names:
            owner, _, field = name.partition(".")
            if owner.endswith(("Config", "OffPolicySettings")) and field:
                found |= {f"{OWNERS.get(owner, 'algo')}.{field}", f"algo.method.{field}"}
    return found


def paths(tree: Any, prefix: str) -> list[str]:
    if not isinstance(tree, dict):
        return [prefix]
    return [prefix, *(path for key, value in tree.items() for path in paths(value, f"{prefix}.{key}"))]


def exists(span: str) -> bool:
    """A file, ``module.Name``, ``Class.member``, a class, a setting, or a choice of a configuration group."""
    span = span.removesuffix("(…)").strip()
    if "/" in span and any((root / span).exists() for root in (ROOT, ROOT / "robopo")):
        return True
    if span.endswith(".py"):
        return span.removesuffix(".py") in modules()
    key, equals, value = span.partition("=")
    if equals and (ROOT / "configs" / key).is_dir():
        return (ROOT / "configs" / key / f"{value}.yaml").is_file()
    if key.split(".")[0] in SETTINGS and "." in key:
        return key in settings()
    module, _, name = span.partition(".")
    return name in modules().get(module, set()) or span in modules()[ANYWHERE]


def code_columns(text: str) -> list[str]:
    """Code spans of the last column of every table whose last heading is "code"."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif inside:
            found += SPAN.findall(cells[-1])
        elif cells[-1] == "code":
            inside = True
    return found


def test_names_are_told_from_mistakes() -> None:
    for good in (
        "losses/divergence.gaussian_kl",
        "divergence.gaussian_kl",
        "ChunkPolicy.step_log_prob",
        "choices.RatioBatch.pivot",
        "GroupStd.BATCH",
        "JaggBackward.cosine",
        "algos/reward_scaling.py",
        "algo=flow_dppo",
        "algo.trust_region.delta_chain",
        "finetune.reduce",
    ):
        assert exists(good), good
    for bad in (
        "divergence.gaussian_kk",
        "losses/divergences.gaussian_kl",
        "ChunkPolicy.step_logprob",
        "GroupStd.BATCHES",
        "algos/reward_scale.py",
        "algo=flow_dpo",
        "algo.trust_region.delta_chains",
        "finetune.reduced",
    ):
        assert not exists(bad), bad


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_in_equation_tables_exists(page: Path) -> None:
    assert [span for span in code_columns(prose(page)) if not exists(span)] == []


def test_every_model_page_has_such_a_table() -> None:
    pages = "dppo flow_dppo reinflow fpo flow_grpo trust_regions polychromic jagg podpo adpo kernels baselines"
    counts = {name: len(code_columns(prose(ROOT / "docs" / f"{name}.md"))) for name in pages.split()}
    assert {name: count for name, count in counts.items() if count < 3} == {}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_modules_rows_and_settings_in_the_text_exist(page: Path) -> None:
    """Outside the tables a span is checked if it begins like one of ours."""
    text = page.read_text(encoding="utf-8")
    dotted = [span for span in SPAN.findall(prose(page)) if re.fullmatch(r"[a-z_/]+(\.[A-Za-z_]+)+", span)]
    ours = [s for s in dotted if s.split(".")[0] in {*modules(), *SETTINGS} and not s.endswith(FILES)]
    rows = [f"algo={row}" for row in re.findall(r"\balgo=(\w+)", text) if row not in ("mine", "mina")]
    chosen = re.findall(rf"\b(?:{'|'.join(SETTINGS)})(?:\.[a-z_]+)+(?==)", text)
    files = [span for span in SPAN.findall(prose(page)) if span.endswith(".py") and "mine" not in span]
    known = {"algo.trust_region.weight"}  # of the example row
    assert [span for span in (*ours, *rows, *chosen, *files) if not exists(span) and span not in known] == []


def family() -> set[str]:
    """Rows of the policy-gradient family."""
    return {name for name in ROWS if "policy_gradient_schema" in (ROOT / f"configs/algo/{name}.yaml").read_text()}


def test_every_row_is_on_the_map() -> None:
    named = set(SPAN.findall(prose(ROOT / "docs" / "algorithms.md")))
    assert ROWS - named == set()
    table = {line.split("`")[1] for line in prose(ROOT / "docs" / "algorithms.md").splitlines() if line[:3] == "| `"}
    assert family() - table == set()


def class_of(node: dict[str, Any] | None) -> str:
    return "" if node is None else node["_target_"].rpartition(".")[2]


def described(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """How the map puts a row's kernel, ratio, advantage and trust region; the cells may say more."""
    kernel = row.get("exploration", {}).get("kernel")
    ratio, region = row["ratio"], row["trust_region"]
    noise = {
        "": "its own",
        "ODE": "none",
        "FlowSDE": "Flow-SDE {eta}",
        "CPS": "CPS {eta}",
        "LearnedNoise": "learned {low}–{high}",
    }[class_of(kernel)].format(**kernel or {})
    unit = {
        "PerStep": f"step, {row.get('reduce', 'MEAN').lower()}",
        "Chain": "chain, normalised",
        "NormalizedRatio": "normalised",
        "CfmRatio": f"flow matching, {ratio.get('granularity', '').replace('_', ' ')}",
    }[class_of(ratio)]
    credit = {"GAE": "GAE", "GroupRelative": "group", "Polychromic": "polychromic"}[class_of(row["advantage"])]
    flat = region.get("base") == region.get("coef")
    held = {
        "Clip": "clip {coef}" if flat else "clip {base} → {coef}",
        "DivergenceMask": "divergence mask, {direction}",
        "DivergenceGate": "divergence gate",
        "SPO": "SPO {eps}",
        "ASPO": "ASPO {eps}",
        "SoftGate": "soft gate {eps}",
    }[class_of(region)].format(**region)
    return noise, unit, credit, held


def test_the_map_says_what_the_rows_are() -> None:
    lines = [line for line in prose(ROOT / "docs" / "algorithms.md").splitlines() if line.startswith("| `")]
    table = {cells[0].strip("` "): [c.strip() for c in cells[2:6]] for cells in (x.split("|")[1:] for x in lines)}
    wrong = {}
    for name in sorted(family()):
        row = yaml.safe_load((ROOT / "configs" / "algo" / f"{name}.yaml").read_text(encoding="utf-8"))
        for cell, expected in zip(table[name], described(row), strict=True):
            if not cell.removeprefix("per ").removeprefix("one ").startswith(expected):
                wrong[name] = (cell, expected)
    assert wrong == {}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_all_pages_can_be_found() -> None:
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        todo += [
            (page.parent / target.partition("#")[0]).resolve()
            for target in LINK.findall(prose(page))
            if not target.startswith(("http", "#"))
        ]
    assert set(PAGES) - reached == set()
