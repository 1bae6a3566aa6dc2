"""The policy as a form on the agent's page."""

import stat
from fractions import Fraction

import pytest
from page_scene import PageScene, words_of

from dpdpca_owner.page.policy import values_of, with_values
from dpdpca_owner.policy import DEFAULT_POLICY, parse_policy
from dpdpca_protocol.errors import UsageError

OTHERS = """
[[recognised]]
name = "Hospital <B>"   # a colleague
words = "one two three four five six seven eight nine ten eleven twelve"

[[rule]]
name = "weekly"   # the board's decision
source = "patients"
max_epsilon = 4
max_delta = 1e-5
month_epsilon = 4
month_delta = 1e-5
[[rule.user]]
name = "Institute"
words = "twelve eleven ten nine eight seven six five four three two one"
"""
CHANGE, FORM = "/policy/change", "/policy"


def policy_of(page: PageScene) -> str:
    return page.scene.desk.home.policy_path.read_text()


def test_a_change_is_shown_then_saved_and_nothing_else_moves(page: PageScene) -> None:
    path = page.scene.desk.home.policy_path
    page.register()
    path.write_text(DEFAULT_POLICY.replace("min_owners = 3 ", "min_owners = 1 ") + OTHERS)
    before = policy_of(page)
    assert "Hospital &lt;B&gt;" in page.show(FORM)
    form = page.form(FORM, CHANGE)
    form |= {
        "max_epsilon": ["0.01"],
        "delta": ["1e-7"],
        "releases": ["joint", "pairs"],
        "dataset": ["people"],
    }
    shown = page.send(CHANGE, form | {"act": "show"})
    assert policy_of(page) == before
    text = words_of(shown.text)
    assert "- max_epsilon = 10 # 1 is a strong" in text
    assert "+ max_epsilon = 0.01 # 1 is a strong" in text
    assert "acceptable refused This owner cannot join" in text  # now, and after the change
    save = form_in(page, shown.text)
    assert page.send(CHANGE, save).status_code == 303
    saved = policy_of(page)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    policy = parse_policy(saved)
    assert (policy.max_epsilon, policy.budget.delta) == (Fraction("0.01"), Fraction("1e-7"))
    assert (policy.releases, policy.dataset) == (("joint", "pairs"), "people")
    removed = [line for line in before.splitlines() if line not in saved.splitlines()]
    assert len(removed) == 3  # ε, δ and the releases; all comments stay
    assert saved.endswith(OTHERS.strip() + "\n")
    assert len(page.woken) == 1


def test_accepted_software_is_a_field_with_a_digest_in_each_line(page: PageScene) -> None:
    one, two = (f"sha256:{each * 32}" for each in ("ab", "cd"))
    form = page.form(FORM, CHANGE)
    assert form["software"] == [""]
    shown = page.send(CHANGE, form | {"software": [f"{one}\r\n  {two}\r\n"], "act": ["show"]})
    assert page.send(CHANGE, form_in(page, shown.text)).status_code == 303
    assert parse_policy(policy_of(page)).software == (one, two)
    assert "dpdpca version --wheel" in policy_of(page)  # the comment stays
    assert page.form(FORM, CHANGE)["software"] == [f"{one}\n{two}\n"]
    bad = page.send(CHANGE, page.form(FORM, CHANGE) | {"software": ["0.2.0"]})
    assert bad.status_code == 400
    assert "sha256: and 64" in bad.text
    assert parse_policy(policy_of(page)).software == (one, two)


def form_in(page: PageScene, html: str) -> dict[str, list[str]]:
    from page_scene import Forms

    forms = Forms()
    forms.feed(page.without_root(html))
    return forms.found[CHANGE]


def test_only_the_change_that_was_shown_is_saved(page: PageScene) -> None:
    form = page.form(FORM, CHANGE) | {"max_epsilon": ["2"]}
    before = policy_of(page)
    save = form_in(page, page.send(CHANGE, form).text)
    assert page.send(CHANGE, form | {"act": "save"}).status_code == 200  # never shown
    assert page.send(CHANGE, save | {"max_epsilon": ["3"]}).status_code == 200  # another change
    assert policy_of(page) == before
    page.scene.desk.home.policy_path.write_text(before + "# changed meanwhile\n")
    assert page.send(CHANGE, save).status_code == 200
    assert "changed meanwhile" in policy_of(page)
    assert parse_policy(policy_of(page)).max_epsilon == 10


BAD = (
    ("max_epsilon", ""),
    ("max_epsilon", "0"),
    ("max_epsilon", "-1"),
    ("max_epsilon", "1,5"),
    ("max_epsilon", "nan"),
    ("max_epsilon", "inf"),
    ("max_epsilon", "1e999999999"),
    ("max_epsilon", "0x10"),
    ("max_delta", "true"),
    ("max_features", "1.5"),
    ("max_features", "0"),
    ("min_owners", "10**9"),
    ("min_owners", "999999999999"),
    ("min_records", "1\n[budget]\nepsilon = 99"),
    ("unit", "delta"),
    ("amount", "1e30"),
    ("amount", "1000"),
    ("delta", "2"),
    ("dataset", "a\x00b"),
    ("dataset", "x" * 101),
)


def test_a_bad_value_is_refused_and_nothing_is_saved(page: PageScene) -> None:
    before, form = policy_of(page), page.form(FORM, CHANGE)
    for field, value in BAD:
        answer = page.send(CHANGE, form | {field: [value], "act": ["save"]})
        assert answer.status_code == 400, (field, value)
        assert "Nothing was saved" in answer.text
        assert 'role="alert"' in answer.text
    assert policy_of(page) == before


def test_an_unknown_choice_is_left_out(page: PageScene) -> None:
    form = page.form(FORM, CHANGE)
    form["releases"] = ["joint", "raw records"]
    assert "raw records" not in page.send(CHANGE, form).text


def test_a_broken_file_is_shown_and_not_touched(page: PageScene) -> None:
    path = page.scene.desk.home.policy_path
    path.write_text("[study]\nmax_epsilon = 'ten'\n")
    answer = page.browser.get(FORM)
    assert answer.status_code == 409
    assert "max_epsilon = &#39;ten&#39;" in answer.text
    assert "/policy/change" not in answer.text


def test_without_a_file_the_default_is_the_start(page: PageScene) -> None:
    path = page.scene.desk.home.policy_path
    path.unlink()
    form = page.form(FORM, CHANGE) | {"min_owners": ["5"]}
    assert page.send(CHANGE, form_in(page, page.send(CHANGE, form).text)).status_code == 303
    assert parse_policy(policy_of(page)).min_owners == 5
    assert "# What this owner agrees to." in policy_of(page)


@pytest.mark.parametrize("text", ["", "[study]\nmax_epsilon = 3", DEFAULT_POLICY, "budget.rho = 0.25\n"])
def test_values_that_are_not_changed_leave_the_file_as_it_is(text: str) -> None:
    assert with_values(text, values_of(parse_policy(text))) == text


def test_the_budget_may_change_its_unit() -> None:
    from dataclasses import replace

    values = replace(values_of(parse_policy(DEFAULT_POLICY)), unit="rho", amount="0.25")
    changed = with_values(DEFAULT_POLICY, values)
    assert parse_policy(changed).budget.rho == Fraction(1, 4)
    assert parse_policy(changed).budget.epsilon is None
    back = with_values(changed, replace(values_of(parse_policy(changed)), unit="epsilon", amount="3"))
    assert parse_policy(back).budget.epsilon == 3
    with pytest.raises(UsageError, match="The budget"):
        with_values(DEFAULT_POLICY, replace(values, amount="lots"))
