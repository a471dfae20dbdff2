"""The documents name what exists: links, errors, public names with their parameters, invariants, words, files."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import fanin
from fanin.cli import COMMANDS
from fanin.domain import errors, states
from fanin.domain.errors import FaninError
from fanin.domain.model import Verdict
from fanin.protocol.check import CHECKS
from tests.stories.documents import ROOT, blocks

DOCS = ROOT / "docs"
DOCUMENTS = [
    path
    for folder in (ROOT, DOCS, DOCS / "decisions", ROOT / "examples")
    for path in sorted(folder.rglob("*.md") if folder.name == "examples" else folder.glob("*.md"))
]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def sections(text: str) -> dict[str, str]:
    """Heading (of the second or third level) to what stands under it, up to the next heading."""
    pieces = re.split(r"^###? (.+)$", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


# Links and words.


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(name))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        path = folder / file if file else ROOT / name
        if not path.exists() or (anchor and anchor not in anchors(path.read_text("utf-8"))):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name: str) -> None:
    named = re.findall(r"`((?:src|tests|tools|examples|docs|bench)/[\w./-]*)`", prose(read(name)))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_document_speaks_of_no_machine(name: str) -> None:
    assert re.findall(r"(?:/work/|/root/|/home/(?!you\b)\w+|/tmp/|\bissue #?\d+\b)", read(name)) == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0].rstrip("/") for link in re.findall(r"\]\(([^)\s]+)\)", read("README.md"))}
    documents = {f"docs/{path.name}" for path in DOCS.glob("*.md")}
    assert documents <= linked


# Errors.

OURS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
}


def test_every_error_class_is_public_and_has_its_section() -> None:
    described = set(sections(read("docs/errors.md")))
    assert described == OURS.keys()
    assert OURS.keys() <= set(fanin.__all__)


def test_every_error_that_a_caller_can_mend_says_what_to_do() -> None:
    said = sections(read("docs/errors.md"))
    families = {"FaninError", "Refused", "Permanent", "RetryLater"}
    assert [name for name in OURS.keys() - families if "*Do:*" not in said[name]] == []


def test_the_families_in_the_reference_are_those_of_the_code() -> None:
    text = " ".join(sections(read("docs/reference.md"))["Errors"].split())
    for family in (errors.Refused, errors.Unavailable):
        listed = re.search(rf"`{family.__name__}`: (.+?)\. ", text)
        assert listed is not None
        members = {name for name, value in OURS.items() if issubclass(value, family) and value is not family}
        assert set(re.findall(r"`(\w+)`", listed[1])) == members
    alone = {n for n, v in OURS.items() if v.__base__ is FaninError} - {"Refused", "Unavailable"}
    assert all(f"`{name}`" in text for name in alone)


# The reference.


def public() -> Iterator[tuple[str, Any]]:
    """Every public name, and the methods and properties of public classes that are no errors."""
    for name in fanin.__all__:
        value = getattr(fanin, name)
        yield name, value
        if inspect.isclass(value) and not issubclass(value, (BaseException, tuple)) and not name.startswith("Async"):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield f"{name}.{attribute}", member


REFERENCE = read("docs/reference.md")


def signatures() -> dict[str, tuple[str, str]]:
    """Heading to the name and the parameters of the call that is shown under it."""
    found: dict[str, tuple[str, str]] = {}
    for heading, text in sections(REFERENCE).items():
        shown = next((block for block in blocks(text) if block.language == "text"), None)
        if shown is not None:
            name, _, parameters = shown.text.strip().removesuffix(")").partition("(")
            found[heading] = (name.rpartition(".")[2], parameters_of(parameters))
    return found


def parameters_of(text: str) -> str:
    """A list of parameters in one form, without annotations."""
    function = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return ast.unparse(function.args)


def real_parameters(value: Any) -> str:
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty, default=Shown(parameter.default))
        if parameter.default is not inspect.Parameter.empty
        else parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name != "self"
    ]
    return parameters_of(str(inspect.Signature(bare)).removeprefix("(").removesuffix(")"))


class Shown:
    """A default as a reader writes it: a class by its name."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        if isinstance(self.value, tuple):
            return "(" + "".join(f"{Shown(item)!r}, " for item in self.value) + ")"
        return self.value.__name__ if isinstance(self.value, type) else repr(self.value)


def test_every_public_name_stands_in_the_reference() -> None:
    words = set(re.findall(r"\w+", REFERENCE))
    assert [name for name, _ in public() if name.rpartition(".")[2] not in words] == []


def test_every_method_has_its_heading_and_its_parameters() -> None:
    shown = signatures()
    methods = {name: value for name, value in public() if inspect.isfunction(value) and "." in name}
    documented = {name for name in methods if name in shown}
    unexplained = {"Backoff.delay"}
    assert methods.keys() - documented - unexplained == set()


@pytest.mark.parametrize("heading", sorted(signatures()))
def test_a_signature_in_the_reference_is_that_of_the_code(heading: str) -> None:
    value: Any = fanin
    for name in heading.split("."):
        value = getattr(value, name)
    name, parameters = signatures()[heading]
    assert name == heading.rpartition(".")[2]
    assert parameters == real_parameters(value)


@pytest.mark.parametrize("name", ["Progress", "Failure", "JobRow", "Effect"])
def test_a_record_in_the_reference_has_the_fields_of_the_code(name: str) -> None:
    record: Any = getattr(fanin, name)
    properties = {n for n, v in vars(record).items() if isinstance(v, property)}
    named = set(re.findall(r"`(\w+)`", sections(REFERENCE)[name]))
    assert set(record.__struct_fields__) | properties <= named


# Operating.


def test_the_log_lines_in_operating_are_said_by_the_code() -> None:
    code = " ".join(path.read_text("utf-8") for path in (ROOT / "src/fanin").rglob("*.py"))
    said = re.sub(r"%(?:\.\d)?[a-z]", "…", re.sub(r'"\s*f?"', "", code))
    said = " ".join(re.sub(r"\{[^{}]*\}", "…", said).split())
    table = re.search(r"^\| line \|.*?\n\n", read("docs/operating.md"), re.MULTILINE | re.DOTALL)
    assert table is not None
    lines = [piece for row in table[0].splitlines()[2:] for piece in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    pieces = [piece.strip(" (),") for line in lines for piece in re.split(r"…|\((?:lost|closed)\)|: conflict", line)]
    assert len(pieces) > 12
    assert [piece for piece in pieces if piece not in said] == []


def test_every_parameter_of_a_postgresql_url_is_described() -> None:
    code = (ROOT / "src/fanin/stores/pg_target.py").read_text("utf-8")
    parameters = set(re.findall(r'query\.pop\("(fanin_\w+)"', code)) | set(re.findall(r'"(FANIN_[A-Z_]+)"', code))
    assert parameters
    assert [name for name in parameters if name not in read("docs/operating.md")] == []


# The protocol and the words.


def test_the_invariants_in_the_protocol_are_those_of_the_check() -> None:
    rows = re.findall(r"^\| (\w\d) \| (.+?) \|$", read("docs/protocol.md"), re.MULTILINE)
    assert rows == list(CHECKS.items())


def test_every_verdict_and_outcome_is_explained() -> None:
    protocol, glossary = read("docs/protocol.md"), read("docs/glossary.md")
    assert [v.name for v in Verdict if f"| {v.name} |" not in protocol] == []
    assert [outcome for outcome in states.OUTCOMES if outcome not in glossary] == []


def test_every_table_is_described() -> None:
    folder = ROOT / "src/fanin/protocol/migrations"
    made = {
        t for path in folder.glob("*.pg.sql") for t in re.findall(r"CREATE TABLE fanin\.(\w+)", path.read_text("utf-8"))
    }
    described = set(re.findall(r"^\| `(\w+)` \| \w", read("docs/protocol.md"), re.MULTILINE)) - {"migration"}
    assert described == made


def glossary() -> dict[str, str]:
    return dict(re.findall(r"^\| ([A-Z][\w ,-]*?) \| (.+?) \|$", read("docs/glossary.md"), re.MULTILINE))


def test_every_word_of_the_glossary_is_used() -> None:
    """A word that no code and no other document uses is not ours. Planned ones are marked, and are not in the code."""
    texts = [read(name) for name in NAMES if name != "docs/glossary.md"]
    texts += [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    text = re.sub(r"[_-]", " ", " ".join(texts)).lower()
    unused = []
    for entry, meaning in glossary().items():
        for word in entry.lower().split(", "):
            if "(planned" not in meaning and re.sub("-", " ", word) not in text:
                unused.append(word)
    assert unused == []


def test_planned_words_are_marked_and_have_no_code_yet() -> None:
    planned = [entry for entry, meaning in glossary().items() if "(planned" in meaning]
    assert planned
    words = {word.lower() for entry in planned for word in entry.split(", ")}
    assert words.isdisjoint({*COMMANDS, *(name.lower() for name in fanin.__all__)})


def test_decisions_are_numbered_and_say_context_choice_and_price() -> None:
    for path in sorted((DOCS / "decisions").glob("*.md")):
        text = path.read_text("utf-8")
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert all(f"**{word}.**" in text for word in ("Context", "Choice", "Price")), path.name
