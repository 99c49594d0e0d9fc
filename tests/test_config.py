import re
import tomllib
import typing

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from sweeps import examples

from bertworks import config
from bertworks.config import (
    Settings,
    TokenizerSettings,
    VocabSettings,
    from_overrides,
    recipe_names,
    recipe_summary,
    to_toml,
    validate,
)
from bertworks.errors import ConfigError, UserError
from bertworks.finetuning.settings import FinetuneSettings, points_of
from bertworks.recipe import Recipe, load_recipe
from bertworks.tasks import find_task


def problems_of(*overrides):
    with pytest.raises(ConfigError) as caught:
        load_recipe("demo", overrides)
    return caught.value.problems


@pytest.fixture
def write(tmp_path):
    def write_recipe(content):
        path = tmp_path / "mine.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_recipe


# -- settings


def test_defaults_are_those_of_the_paper():
    recipe = Recipe()
    assert recipe.tokenizer == TokenizerSettings(lowercase=True, strip_accents=None, split_cjk=True)
    assert recipe.vocab.size == 30522
    assert recipe.vocab.algorithm == "wordpiece"


def test_settings_cannot_be_changed_once_made():
    with pytest.raises(ValidationError, match="frozen"):
        Recipe().vocab.size = 8


def test_an_int_is_a_float_but_no_other_type_passes_for_another():
    assert validate(VocabSettings, {"coverage": 1}, "vocab").coverage == 1.0
    for key, value in [
        ("size", "8000"),
        ("size", 8000.0),
        ("size", True),
        ("min_count", None),
        ("coverage", "0.5"),
        ("coverage", True),
        ("algorithm", 1),
    ]:
        with pytest.raises(ConfigError, match=f"vocab: 1 problem\n  {key}: "):
            validate(VocabSettings, {key: value}, "vocab")
    for value in [1, 0, "true", "yes", 1.0]:
        with pytest.raises(ConfigError, match=r"lowercase: .* is neither true nor false"):
            validate(TokenizerSettings, {"lowercase": value}, "tokenizer")


@pytest.mark.parametrize(
    ("low", "high", "key"), [(100, 10_000_000, "size"), (1, None, "min_count"), (0, 30516, "unused")]
)
def test_bounds_are_inclusive_and_one_beyond_is_refused(low, high, key):
    assert getattr(validate(VocabSettings, {key: low}, "vocab"), key) == low
    with pytest.raises(ConfigError, match=f"{key}: {low - 1} is too small; at least {low}$"):
        validate(VocabSettings, {key: low - 1}, "vocab")
    if high is not None:
        assert getattr(validate(VocabSettings, {key: high}, "vocab"), key) == high
        with pytest.raises(ConfigError, match=f"{key}: {high + 1} is too large; at most {high}"):
            validate(VocabSettings, {key: high + 1}, "vocab")


def test_coverage_is_more_than_zero_and_at_most_one():
    assert problems_of("vocab.coverage=0") == ["vocab.coverage: 0 is too small; more than 0.0"]
    assert problems_of("vocab.coverage=1.001") == ["vocab.coverage: 1.001 is too large; at most 1.0"]
    assert load_recipe("demo", ["vocab.coverage=1"]).vocab.coverage == 1.0


@given(size=st.integers(100, 1000), unused=st.integers(0, 1010))
def test_unused_pieces_and_the_five_special_ones_leave_room_for_a_piece(size, unused):
    values = {"size": size, "unused": unused}
    if unused + 5 < size:
        assert validate(VocabSettings, values, "vocab").unused == unused
    else:
        with pytest.raises(ConfigError, match=f"unused: {unused} is too large; at most {size - 6}, for size {size} "):
            validate(VocabSettings, values, "vocab")


# -- all problems at once, in words


def test_one_text_in_place_of_a_list_of_overrides_is_refused():
    words = r"overrides are a list, not one text; write overrides=\['train\.epochs=1'\]"
    for read in (
        lambda: load_recipe("demo", "train.epochs=1"),
        lambda: from_overrides(Recipe, "train.epochs=1", "here"),
        lambda: points_of(find_task("rte"), "train.epochs=1", is_grid=True),
    ):
        with pytest.raises(UserError, match=words):
            read()


def test_all_problems_of_file_and_overrides_are_told_together(write):
    path = write("[vocab]\nsise = 3\nmin_count = 0\nsize = 1000\nunused = 2000\n[tokenizer]\nlowercase = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, ["vocab.coverage=2", "vocab.algoritm=bpe", "nothing"])
    assert str(caught.value).startswith(f"{path}: 7 problems\n  ")
    assert sorted(caught.value.problems) == [
        "'nothing' is not a setting; write section.key=value",
        "tokenizer.lowercase: 1 is neither true nor false",
        "vocab.algoritm: unknown key (did you mean 'vocab.algorithm'?)",
        "vocab.coverage: 2 is too large; at most 1.0",
        "vocab.min_count: 0 is too small; at least 1",
        "vocab.sise: unknown key (did you mean 'vocab.size'?)",
        "vocab.unused: 2000 is too large; at most 994, for size 1000 has to hold pieces too",
    ]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("vocab.size=-3", "vocab.size: -3 is too small; at least 100"),
        ("vocab.size=1_000_000_000_000", "vocab.size: 1000000000000 is too large; at most 10000000"),
        ("vocab.size=2e3", "vocab.size: 2000.0 is not a whole number"),
        ("vocab.size=true", "vocab.size: true is not a whole number"),
        ('vocab.size="2000"', "vocab.size: '2000' is not a whole number"),
        ("vocab.size=2O00", "vocab.size: '2O00' is not a whole number"),
        ("vocab.size=[2000]", "vocab.size: [2000] is not a whole number"),
        ("vocab.coverage=inf", "vocab.coverage: inf is not a finite number"),
        ("vocab.coverage=-nan", "vocab.coverage: nan is not a finite number"),
        ("vocab.coverage=most", "vocab.coverage: 'most' is not a number"),
        ("vocab.algorithm=wp", "vocab.algorithm: 'wp' is not allowed; choose 'wordpiece', 'bpe', 'gpt-bpe' or 'words'"),
        ("tokenizer.lowercase=True", "tokenizer.lowercase: 'True' is neither true nor false"),
        ("vocab.sise=3", "vocab.sise: unknown key (did you mean 'vocab.size'?)"),
        ("vocab.min-count=3", "vocab.min-count: unknown key (did you mean 'vocab.min_count'?)"),
        ("VOCAB.SIZE=3", "VOCAB.SIZE: unknown key (did you mean 'vocab.size'?)"),
        ("size=3", "size: unknown key (did you mean 'vocab.size'?)"),
        ("vocabb.sise=3", "vocabb.sise: unknown key (did you mean 'vocab.size'?)"),
        ("vocab.lowercase=true", "vocab.lowercase: unknown key (did you mean 'tokenizer.lowercase'?)"),
        ("vocab.size.x=3", "vocab.size.x: unknown key (known: tokenizer, vocab, model, data, optim, train)"),
        ("zzz=3", "zzz: unknown key (known: tokenizer, vocab, model, data, optim, train)"),
        ("vocab=3", "vocab: a section; set one of its keys, as in vocab.size=..."),
        ("vocab={size = 2000}", "vocab: a section; set one of its keys, as in vocab.size=..."),
        ("vocab.size", "'vocab.size' is not a setting; write section.key=value"),
        ("", "'' is not a setting; write section.key=value"),
        ("=3", "'=3' is not a setting; write section.key=value"),
        ("vocab.size=", "vocab.size: '' is not a value"),
        ('vocab.algorithm="bpe', "vocab.algorithm: '\"bpe' is not TOML: Unterminated string"),
        ("vocab.size=200\nx=3", r"vocab.size: '200\nx=3' has control characters or is not UTF-8"),
        ("vocab.size=\udcff", r"vocab.size: '\udcff' has control characters or is not UTF-8"),
    ],
)
def test_what_a_wrong_override_is_told(override, problem):
    assert problems_of(override) == [problem]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 900, "is not TOML: the values are nested too deeply"),
        ("9" * 5000, "is too long; at most 1,000 characters"),
    ],
    ids=["deep", "long"],
)
def test_a_deep_or_endless_override_is_told_shortly(text, said):
    """S6."""
    (problem,) = problems_of(f"vocab.size={text}")
    assert problem == f"vocab.size: '{text[:27]}...{text[:28]}' {said}"


def test_a_key_of_the_same_section_is_nearer_than_one_of_another():
    class Part(Settings):
        seed: int = 0

    class Whole(Settings):
        data: Part = Part()
        train: Part = Part()

    with pytest.raises(ConfigError) as caught:
        validate(Whole, {"data": {"sead": 1}, "train": {"sead": 1}}, "whole")
    assert caught.value.problems == [
        "data.sead: unknown key (did you mean 'data.seed'?)",
        "train.sead: unknown key (did you mean 'train.seed'?)",
    ]


def test_without_a_near_key_those_of_the_section_are_listed():
    assert problems_of("tokenizer.zzz=1") == [
        "tokenizer.zzz: unknown key (known: tokenizer.lowercase, tokenizer.strip_accents, tokenizer.split_cjk)"
    ]


def test_validate_names_keys_as_the_caller_gave_them():
    with pytest.raises(ConfigError) as caught:
        validate(VocabSettings, {"sise": 3, "size": -3, "unused": 10**12}, "vocab options")
    assert str(caught.value).splitlines() == [
        "vocab options: 3 problems",
        "  size: -3 is too small; at least 100",
        "  unused: 1000000000000 is too large; at most 9999994, for size 10000000 has to hold pieces too",
        "  sise: unknown key (did you mean 'size'?)",
    ]


def test_a_setting_without_a_default_and_one_of_another_kind_are_told_too():
    class Other(Settings):
        name: str
        below: int = Field(default=0, lt=5)
        text: str = ""
        pattern: str = Field(default="aa", pattern="^a{2}$")

    with pytest.raises(ConfigError) as caught:
        validate(Other, {"below": 5, "text": 3, "pattern": "{x}"}, "other")
    assert caught.value.problems == [
        "name: not set; it has no default",
        "below: 5 is too large; less than 5",
        "text: 3 is not text",
        "pattern: '{x}': String should match pattern '^a{2}$'",
    ]


# -- overrides


def test_overrides_are_toml_or_plain_words():
    recipe = load_recipe(
        "demo",
        ["vocab.size=3_000", "vocab.algorithm=bpe", " vocab.coverage = 0.5 ", "tokenizer.strip_accents=false"],
    )
    assert recipe.vocab == VocabSettings(size=3000, algorithm="bpe", coverage=0.5, min_count=2)
    assert recipe.tokenizer.strip_accents is False
    assert load_recipe("demo", ['vocab.algorithm="bpe"']).vocab.algorithm == "bpe"


def test_the_last_override_of_a_key_wins():
    assert load_recipe("demo", ["vocab.size=300", "vocab.size=400"]).vocab.size == 400
    assert load_recipe("demo", ["vocab.size=-1", "vocab.size=400"]).vocab.size == 400


def test_an_override_mends_a_wrong_value_of_the_file(write):
    assert load_recipe(write("[vocab]\nsize = 3\n"), ["vocab.size=300"]).vocab.size == 300


def test_an_override_does_not_hide_that_the_file_has_a_value_for_a_section(write):
    with pytest.raises(ConfigError, match="vocab: 3 is not a section; set its keys one by one"):
        load_recipe(write("vocab = 3"), ["vocab.size=300"])


@settings(max_examples=examples(300))
@given(st.lists(st.text() | st.tuples(st.sampled_from(["vocab.size", "vocab", "tokenizer."]), st.text()).map("=".join)))
def test_any_overrides_give_a_recipe_or_a_user_error_that_can_be_printed(overrides):
    problems = []
    try:
        load_recipe("demo", overrides)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.encode() and problem.splitlines() == [problem] for problem in problems)


# -- files


def test_a_shipped_recipe_is_found_by_name_and_any_by_path(write):
    assert load_recipe("demo").vocab == VocabSettings(size=2000, min_count=2)
    assert load_recipe(write("[vocab]\nsize = 300")).vocab.size == 300
    assert load_recipe(write("")) == Recipe()


def test_a_byte_order_mark_and_windows_line_ends_are_read(write):
    assert load_recipe(write("\ufeff[vocab]\r\nsize = 300\r\n")).vocab.size == 300


@pytest.mark.parametrize("name", ["dmo", "DEMO", "demo.tml"])
def test_an_unknown_recipe_names_the_nearest(name):
    said = f"no recipe '{name}' (did you mean 'demo'?); give a shipped recipe's name or a path to a .toml"
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        load_recipe(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../recipes/demo", "/etc/passwd", "a\0", "x" * 10_000])
def test_what_is_no_name_of_a_recipe_reads_no_file(name):
    with pytest.raises(UserError, match=r"^no recipe '.{0,60}' \((known: 12x1024, |did you mean '[\w-]+'\?\))"):
        load_recipe(name)


def test_a_missing_file_names_the_nearest_beside_it_or_the_shipped_one(tmp_path, write):
    write("")
    with pytest.raises(UserError, match=rf"no recipe file .*mne\.toml \(did you mean '{tmp_path}/mine\.toml'\?\)$"):
        load_recipe(str(tmp_path / "mne.toml"))
    with pytest.raises(UserError, match=r"no recipe file .*demo\.toml \(did you mean 'demo'\?\)$"):
        load_recipe(str(tmp_path / "demo.toml"))
    with pytest.raises(UserError, match=r"no recipe file .*/zzz/quite\.toml$"):
        load_recipe(str(tmp_path / "zzz" / "quite.toml"))


def test_what_cannot_be_read_is_a_user_error(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="not a regular file"):
        load_recipe(str(tmp_path / "folder.toml"))
    with pytest.raises(UserError, match="null byte"):
        load_recipe("a\0.toml")
    with pytest.raises(UserError, match="File name too long"):
        load_recipe("x" * 5000 + ".toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[vocab]\nsize = = 3\n", ", line 2, column 8: Invalid value"),
        ("[vocab]\nsize = 3\nsize = 4", ", line 3, column 9: Cannot overwrite a value"),
        ("[vocab]\n[vocab]\n", ", line 2, column 7: Cannot declare ('vocab',) twice"),
        ("[vocab", ", line 1, column 7: Expected ']' at the end of a table declaration"),
        ("x = '''", ", end of document: Expected \"'''\""),
        ("a = \0", ", line 1, column 5: Invalid value"),
        (b"[vocab]\n# caf\xe9\n", ", line 2: byte 13 is not UTF-8; save the file as UTF-8"),
        ("[vocab]".encode("utf-16"), ", line 1: byte 0 is not UTF-8; save the file as UTF-8"),
        ("a = " + "[\n" * 1000, ": the values are nested too deeply"),
        ("\nsize = " + "9" * 5000, ", line 2: 5,007 characters in one line; at most 1,000"),
        ("# " + "x" * 10_000_000, " is too large for a recipe; at most 65,536 bytes"),
        ("#\n" * 32_769, " is too large for a recipe; at most 65,536 bytes"),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_what_a_file_that_is_no_recipe_is_told(write, content, said):
    """S6: not TOML, 10 MB, nested 1,000 deep, numbers without end; the place is named where there is one."""
    path = write(content)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    assert str(caught.value) == path + said


def test_a_file_of_exactly_the_limit_is_read(write):
    assert load_recipe(write("#\n" * 32_768)) == Recipe()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("vocab = 3", "vocab: 3 is not a section; set its keys one by one"),
        ("[[vocab]]\nsize = 300", "vocab: [{'size': 300}] is not a section; set its keys one by one"),
        ("[vocab]\nsize = 2020-01-01", "vocab.size: datetime.date(2020, 1, 1) is not a whole number"),
        ("[vocab]\nsize = " + "9" * 900, f"vocab.size: {'9' * 13}...{'9' * 14} is too large; at most 10000000"),
        ("vocab.size" + ".a" * 400 + " = 1", "vocab.size: {'a': {'a': {'a': {...}}}} is not a whole number"),
        ("[" + ".".join("a" * 450) + "]", "a: unknown key (known: tokenizer, vocab, model, data, optim, train)"),
        ('"a\\nb\\u001b[31m" = 1', r"'a\nb\x1b[31m': unknown key (known: tokenizer, vocab, model, data, optim, train)"),
        (
            "x" * 900 + " = 1",
            f"'{'x' * 27}...{'x' * 28}': unknown key (known: tokenizer, vocab, model, data, optim, train)",
        ),
        ("[vocab]\nalgorithm = '" + "x" * 900 + "'", f"vocab.algorithm: '{'x' * 27}...{'x' * 28}' is not allowed; "),
    ],
    ids=lambda content: content[:30],
)
def test_strange_values_are_told_in_one_short_line(write, content, problem):
    """S6: values from outside are shortened and cannot write control characters to the terminal."""
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(content))
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)
    assert len(caught.value.problems[0]) < 150


def test_a_number_too_long_for_python_to_print_is_still_told():
    with pytest.raises(ConfigError, match="size: a number of thousands of digits is too large; at most 10000000"):
        validate(VocabSettings, {"size": 10**5000}, "vocab")
    with pytest.raises(ConfigError, match="unused: a number of thousands of digits is too large"):
        validate(VocabSettings, {"unused": 10**5000}, "vocab")


def test_the_worst_file_within_the_limits_takes_little_time(write):
    """S6: dotted keys cost tomllib quadratic time; one of 32,000 parts took 16 s before lines had a limit."""
    path = write("\n".join(".".join("a" * 497) + f".b{i:02}=1" for i in range(64)))
    with pytest.raises(ConfigError, match="a: unknown key"):
        load_recipe(path)
    with pytest.raises(UserError, match="64,003 characters in one line"):
        load_recipe(write(".".join("a" * 32_001) + "=1"))


# -- a recipe like another


def test_a_recipe_like_another_is_that_one_but_for_what_it_says_itself(write):
    mine = load_recipe(write('like = "demo"\n[vocab]\nsize = 300\n[optim]\nlr = 1e-3\n'))
    demo = load_recipe("demo")
    assert mine.vocab == demo.vocab.model_copy(update={"size": 300})
    assert mine.optim == demo.optim.model_copy(update={"lr": 1e-3})
    assert (mine.model, mine.data, mine.train) == (demo.model, demo.data, demo.train)
    assert load_recipe(write('like = "demo"')) == demo


def test_a_recipe_may_be_like_one_that_is_like_a_third(write):
    mine = load_recipe(write('like = "large"\n[train]\nmax_steps = 3\n'), ["train.batch_size=2"])
    assert (mine.model.preset, mine.data.short_length) == ("large", 128)
    assert (mine.train.max_steps, mine.train.batch_size, mine.train.save_every) == (3, 2, 10_000)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"bse"', "like: no recipe 'bse' (did you mean 'base'?); give a shipped recipe's name"),
        ("3", "like: no recipe 3; give a shipped recipe's name"),
        ('["base"]', "like: no recipe ['base']; give a shipped recipe's name"),
        ('"../recipes/demo.toml"', "like: no recipe '../recipes/demo.toml' ("),
    ],
)
def test_what_a_recipe_cannot_be_like_is_told_with_all_else_and_with_its_file(write, value, said):
    path = write(f"like = {value}\n[vocab]\nsise = 300\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, ["train.keep=0"])
    assert caught.value.where == path
    problems = caught.value.problems
    assert len(problems) == 3
    assert problems[0].startswith(said)
    assert {problem.partition(":")[0] for problem in problems} == {"like", "vocab.sise", "train.keep"}


def test_a_problem_of_a_recipe_like_another_is_told_with_its_own_file(write):
    path = write('like = "mask-80-10-10"\n[data]\nmask_share = 0.95\n[vocab]\nsise = 3\n')
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert caught.value.where == path
    assert sorted(caught.value.problems) == [
        "data.random_share: 0.1 and mask_share 0.95 are more than 1 together",
        "vocab.sise: unknown key (did you mean 'vocab.size'?)",
    ]


def test_a_value_for_a_section_is_told_though_another_recipe_has_the_section(write):
    with pytest.raises(ConfigError, match="vocab: 3 is not a section"):
        load_recipe(write('like = "demo"\nvocab = 3\n'))


def test_recipes_that_are_like_each_other_are_told_so(monkeypatch):
    shipped = {"base": b'like = "large"', "large": b'like = "base"'}
    monkeypatch.setattr(config, "_read_shipped", lambda name: shipped[name])
    with pytest.raises(ConfigError, match="like: base is like large is like base, which is a cycle"):
        load_recipe("base")


def test_like_is_no_setting_and_not_in_what_is_written(write):
    assert problems_of("like=base")[0].startswith("like: unknown key")
    text = to_toml(load_recipe("large"))
    assert "like" not in text
    assert load_recipe(write(text)) == load_recipe("large")


# -- shipped recipes and writing back


def test_recipes_are_listed_by_name_and_a_wrong_one_has_no_summary():
    assert recipe_names() == sorted(recipe_names())
    assert "demo" in recipe_names()
    with pytest.raises(UserError, match="no recipe 'dmo'"):
        recipe_summary("dmo")


RECIPES = st.builds(
    lambda tokenizer, size, unused, **vocab: Recipe(
        tokenizer=tokenizer, vocab=VocabSettings(size=size, unused=min(unused, size - 6), **vocab)
    ),
    tokenizer=st.builds(
        TokenizerSettings, lowercase=st.booleans(), strip_accents=st.none() | st.booleans(), split_cjk=st.booleans()
    ),
    size=st.integers(100, 10_000_000),
    unused=st.integers(0, 10_000_000),
    algorithm=st.sampled_from(["wordpiece", "bpe"]),
    coverage=st.floats(0, 1, exclude_min=True),
    min_count=st.integers(1, 10**15),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recipe=RECIPES)
def test_a_recipe_written_and_read_again_is_equal(write, recipe):
    text = to_toml(recipe)
    assert load_recipe(write(text)) == recipe
    assert to_toml(load_recipe(write(text))) == text


@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
)
@example('\x7f\x00\u2028"\\')
def test_any_plain_value_is_written_as_toml_reads_it(value):
    back = tomllib.loads(f"x = {config._toml_value(value)}")["x"]
    assert (back, type(back)) == (value, type(value))


def test_a_setting_that_may_be_none_is_none_by_default_since_toml_cannot_say_it():
    for section in Recipe.model_fields.values():
        for name, field in section.annotation.model_fields.items():
            if type(None) in typing.get_args(field.annotation):
                assert field.default is None, name


def test_a_written_recipe_says_every_setting_that_has_a_value():
    assert to_toml(load_recipe("demo")).startswith(
        "[tokenizer]\nlowercase = true\nsplit_cjk = true\n\n"
        '[vocab]\nsize = 2000\nalgorithm = "wordpiece"\nunused = 0\ncoverage = 0.99995\nmin_count = 2\n'
    )


@pytest.mark.parametrize("sections", [Recipe, FinetuneSettings])
def test_every_number_has_an_end(sections):
    """A setting of a thousand digits is refused where it is read, not by whatever meets it first."""
    for section, field in sections.model_fields.items():
        for name, setting in field.annotation.model_fields.items():
            if int in (setting.annotation, *getattr(setting.annotation, "__args__", ())):
                with pytest.raises(ConfigError, match=r"is too large|is neither|is not"):
                    config.from_overrides(sections, [f"{section}.{name}={10**30}"], "settings")
