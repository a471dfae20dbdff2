"""The command of a map: where its placeholders stand, and what replaces them."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.cli.mapping.inputs import Item, gather, stems
from fanin.cli.mapping.plan import latest_key
from fanin.cli.mapping.template import part_template, part_value, then_template
from fanin.domain.errors import BadOption

CONTEXTS = [
    "printf %s {}",
    'printf %s "{}"',
    "printf %s '{}'",
    'printf %s "$(printf %s {})"',
    'printf %s "$(printf %s "{}")"',
    'printf "%s" {} # a comment with a quote: don\'t',
    "if true; then (printf %s {}); fi",
    'x={}; printf %s "$x"',
]


def run(command: list[str], item: str, *, shell: bool = False, number: int = 1) -> bytes:
    rendered = part_template(command, shell).render(
        lambda hole: part_value(hole, item, number, lambda suffix: "/tmp/out" + suffix)
    )
    words = ["/bin/sh", "-c", rendered] if isinstance(rendered, str) else rendered
    return subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout


@pytest.mark.parametrize("template", CONTEXTS)
@pytest.mark.parametrize(
    "item",
    [
        "a b",
        "it's",
        '"x"',
        "$(touch /tmp/never)",
        "`id`",
        "a;b&c|d",
        "*",
        "~",
        "-n",
        "\\",
        "a\\nb",
        "$HOME",
        "ü漢",
        "!",
        "#x",
    ],
)
def test_whatever_the_input_is_it_arrives_as_one_word_in_every_kind_of_quotes(template: str, item: str) -> None:
    assert run([template], item) == item.encode()


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda t: t[-1] != "\n"
    )
)
def test_no_input_is_ever_read_as_code(item: str) -> None:
    double_then_single = run(["printf '%s|' {} \"{}\" '{}'"], item)
    assert double_then_single == (item + "|").encode() * 3


@pytest.mark.parametrize(
    "template", ["echo `echo {}`", "echo $'{}'", "cat <<END\n{}\nEND", "echo $(case x in x) echo {};; esac)"]
)
def test_where_no_quoting_is_safe_the_template_is_refused(template: str) -> None:
    with pytest.raises(BadOption, match=re.escape("{}")):
        part_template([template], False)


@pytest.mark.parametrize(
    ("placeholder", "value"),
    [
        ("{}", "dir/photo.tar.gz"),
        ("{.}", "dir/photo.tar"),
        ("{/}", "photo.tar.gz"),
        ("{//}", "dir"),
        ("{/.}", "photo.tar"),
        ("{#}", "7"),
        ("{out}.jpg", "/tmp/out.jpg"),
        ("{out}.jpg,", "/tmp/out.jpg,"),
    ],
)
def test_placeholders_mean_what_users_of_gnu_parallel_expect(placeholder: str, value: str) -> None:
    command = ["printf", "%s", placeholder]
    if placeholder.startswith("{out}"):
        command = ["sh", "-c", 'printf %s "$0"', placeholder, "{}"]
    assert run(command, "dir/photo.tar.gz", number=7) == value.encode()


def test_the_folder_of_a_bare_name_is_a_dot() -> None:
    assert run(["printf %s {//}"], "photo.png") == b"."


def test_without_a_placeholder_the_input_is_the_last_word() -> None:
    assert run(["printf", "%s"], "a b") == b"a b"
    assert run(["printf %s"], "a b") == b"a b"
    assert run(["printf %s-%s {out}"], "a b") == b"/tmp/out-a b"


def test_several_words_are_run_without_a_shell() -> None:
    assert run(["printf", "%s;", "$HOME", "{}"], "x") == b"$HOME;x;"


def test_several_words_are_one_shell_line_when_asked() -> None:
    assert run(["printf", "%s", "{}", "|", "tr", "a", "b"], "a a", shell=True) == b"b b"


def test_a_backslash_keeps_a_placeholder_as_it_is() -> None:
    assert run(["printf %s \\{} {}"], "x") == b"{}x"


def test_no_command_is_refused_with_an_example() -> None:
    with pytest.raises(BadOption, match="after --"):
        part_template([], False)


def test_the_placeholder_of_the_other_command_is_refused() -> None:
    with pytest.raises(BadOption, match="belongs in the --then command"):
        part_template(["zip {outs}"], False)
    with pytest.raises(BadOption, match=re.escape("writes no {out}")):
        then_template("zip {outs}", False)
    with pytest.raises(BadOption, match="without quotes"):
        then_template('zip "{outs}"', True)


def test_outs_become_one_quoted_word_each() -> None:
    rendered = then_template("printf '%s|' {outs}", True).render(lambda hole: ["a b", "it's", "-x"])
    assert isinstance(rendered, str)
    assert subprocess.run(["/bin/sh", "-c", rendered], capture_output=True, check=True).stdout == b"a b|it's|-x|"


def test_names_of_outputs_are_the_inputs_base_names_without_extension() -> None:
    assert stems(["a/x.png", "y.tar.gz", "plain", ".hidden"]) == ["x", "y.tar", "plain", ".hidden"]


def test_names_that_collide_get_the_number_of_the_input() -> None:
    assert stems(["a/x.png", "b/x.png", "c/X.gif", "y.png"]) == ["x-1", "x-2", "X-3", "y"]


def test_a_number_that_makes_a_taken_name_is_added_again() -> None:
    assert stems(["x.png", "a/x.png", "x-2.png"]) == ["x-1", "x-2-2", "x-2"]


def test_an_input_without_a_usable_name_is_named_by_its_number() -> None:
    assert stems(["/", "..", "a/b/"]) == ["item-1", "item-2", "b"]


def test_a_long_name_is_cut_at_a_whole_character_and_stays_unique() -> None:
    made = stems(["ü" * 200 + ".a", "ü" * 200 + ".b"])
    assert len(set(made)) == 2
    assert all(len(name.encode()) < 200 for name in made)


@given(st.lists(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=3)))
def test_names_of_outputs_are_unique_and_follow_from_the_list(items: list[str]) -> None:
    made = stems(items)
    assert len({name.casefold() for name in made}) == len(items)
    assert made == stems(items)


def test_bytes_that_are_not_utf8_survive_the_database() -> None:
    item = Item.of("caf\udce9.txt")
    assert item.raw == b"caf\xe9.txt"
    assert item.text == "caf\\xe9.txt"
    assert item.value == "caf\udce9.txt"


def test_nul_in_lines_is_refused_with_the_line_and_the_option(tmp_path) -> None:
    file = tmp_path / "list"
    file.write_bytes(b"a\nb\0c\n")
    with pytest.raises(BadOption, match=r"line 2: .* -0"):
        gather(None, [str(file)], False)
    assert gather(None, [str(file)], True) == ["a\nb", "c\n"]


def test_again_starts_the_next_job_only_when_the_latest_has_ended() -> None:
    ended = {"k": True, "k#2": True, "k#3": False}

    def latest(known: list[str], again: bool) -> str:
        return latest_key("k", known.__contains__, ended.__getitem__, again)

    assert latest([], False) == "k"
    assert latest([], True) == "k"
    assert latest(["k"], True) == "k#2"
    assert latest(["k", "k#2"], False) == "k#2"
    assert latest(["k", "k#2", "k#3"], True) == "k#3"
