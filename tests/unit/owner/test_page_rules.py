"""Rules of the policy as forms on the agent's page."""

from typing import Any

import pytest
from page_scene import Forms, PageScene, words_of
from rule_texts import rule_for

from dpdpca_owner.approving import approve_inbox
from dpdpca_owner.declining import decline
from dpdpca_owner.policy import DEFAULT_POLICY, parse_policy
from dpdpca_owner.rules import RELEASES
from dpdpca_runtime.words import fingerprint_words

RULES, ADD, REMOVE = "/policy/rules", "/policy/rules/add", "/policy/rules/remove"
POLICY = DEFAULT_POLICY.replace("min_owners = 3 ", "min_owners = 1 ") + "\n[data]   # ours\n"
HOSTILE = "<b>x</b> \"'\\ [[rule]] #"


@pytest.fixture
def at(page: PageScene) -> PageScene:
    """A page with registered records."""
    page.register()
    page.scene.desk.home.policy_path.write_text(POLICY.replace("[data]\n", "# [data]\n", 1), encoding="utf-8")
    return page


def text_of(page: PageScene) -> str:
    return page.scene.desk.home.policy_path.read_text(encoding="utf-8")


def typed(page: PageScene, **changes: str | list[str]) -> dict[str, Any]:
    """The form for a rule that covers the scene's study, as a person fills it in."""
    manifest = page.scene.proxy.manifest
    filled = {
        "name": "weekly",
        "user": "Institute",
        "words": fingerprint_words(page.scene.parties.user.public.ed25519),
        "source": "patients",
        "max_epsilon": "4.50",
        "max_delta": "1e-4",
        "month_epsilon": "4.5",
        "month_delta": "0.0001",
        "min_owners": str(manifest.body["min_owners"]),
    }
    return page.form(RULES, ADD) | filled | changes


def form_in(page: PageScene, html: str, action: str) -> dict[str, list[str]]:
    forms = Forms()
    forms.feed(page.without_root(html))
    return forms.found[action]


def rules_in(page: PageScene) -> list[str]:
    return [rule.name for rule in parse_policy(text_of(page)).rules]


def approved(page: PageScene) -> list[str]:
    return [each.rule for each in approve_inbox(page.scene.desk, lambda place, problem: None)]


def test_a_rule_is_shown_with_its_effect_then_saved_and_then_approves(at: PageScene) -> None:
    before = text_of(at)
    assert "There is no rule" in words_of(at.show("/policy"))
    shown = at.send(ADD, typed(at))
    assert shown.status_code == 200
    assert text_of(at) == before
    text = words_of(shown.text)
    assert "+ max_epsilon = 4.50" in text  # as it was typed
    assert "waits for a person approved without asking you by the rule ‘ weekly ’" in text
    assert approved(at) == []
    assert at.send(ADD, form_in(at, shown.text, ADD)).status_code == 303
    assert text_of(at).startswith(before.rstrip())
    (rule,) = parse_policy(text_of(at)).rules
    assert (rule.name, rule.source, rule.releases) == ("weekly", "patients", RELEASES)
    assert "masked" not in rule.releases
    assert len(at.woken) == 1
    assert "weekly" in words_of(at.show("/policy"))
    assert approved(at) == ["weekly"]


def test_a_rule_is_removed_and_everything_else_stays(at: PageScene) -> None:
    before = text_of(at)
    for name in ("weekly", HOSTILE):
        at.send(ADD, form_in(at, at.send(ADD, typed(at, name=name)).text, ADD))
    assert rules_in(at) == ["weekly", HOSTILE]
    assert "&lt;b&gt;x&lt;/b&gt;" in at.show(RULES)
    shown = at.send(REMOVE, at.form(RULES, ADD) | {"rule": "weekly"})
    assert "approved without asking you" in words_of(shown.text)  # by the other rule
    assert rules_in(at) == ["weekly", HOSTILE]
    assert at.send(REMOVE, form_in(at, shown.text, REMOVE)).status_code == 303
    assert rules_in(at) == [HOSTILE]
    last = at.send(REMOVE, at.form(RULES, REMOVE)).text
    assert "waits for a person" in words_of(last)
    assert at.send(REMOVE, form_in(at, last, REMOVE)).status_code == 303
    assert text_of(at) == before
    assert approved(at) == []


def test_only_the_change_that_was_shown_is_saved(at: PageScene) -> None:
    before = text_of(at)
    save = form_in(at, at.send(ADD, typed(at)).text, ADD)
    for changed in (
        {"max_epsilon": ["9"], "month_epsilon": ["9"]},
        {"words": ["a " * 12]},
        {"seen": ["0" * 64]},
    ):
        assert at.send(ADD, save | changed).status_code == 200
    assert text_of(at) == before
    at.scene.desk.home.policy_path.write_text(f"{before}# changed meanwhile\n", encoding="utf-8")
    assert at.send(ADD, save).status_code == 200
    assert rules_in(at) == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("name", "", "name"),
        ("name", "x" * 101, "name"),
        ("name", "a\nb", "name"),
        ("user", "", "name"),
        ("words", "eleven words are not enough for a key of a data", "12 words"),
        ("source", "", "registered records"),
        ("source", "others", "registered records"),
        ("max_epsilon", "ten", "Largest ε of one study"),
        ("max_epsilon", "0", "max_epsilon"),
        ("max_epsilon", "5", "month_epsilon is below max_epsilon"),
        ("month_delta", "1,5", "Largest δ in a month"),
        ("min_owners", "2.5", "Fewest owners"),
        ("min_owners", "0", "min_owners"),
        ("releases", "masked", "releases"),
    ],
)
def test_a_bad_value_is_named_and_what_was_typed_stays(
    at: PageScene, name: str, value: str, problem: str
) -> None:
    before = text_of(at)
    answer = at.send(ADD, typed(at, **{name: [value]}) | {"act": "save"})
    assert answer.status_code == 400
    assert problem in words_of(answer.text).replace("&#39;", "'")
    assert text_of(at) == before
    if name != "name":
        assert form_in(at, answer.text, ADD)["name"] == ["weekly"]


def test_a_name_is_used_once(at: PageScene) -> None:
    at.send(ADD, form_in(at, at.send(ADD, typed(at)).text, ADD))
    answer = at.send(ADD, typed(at, max_epsilon="4"))
    assert answer.status_code == 400
    assert "Two rules have the name" in words_of(answer.text)


def test_the_effect_says_why_a_person_is_still_needed(at: PageScene) -> None:
    shown = words_of(at.send(ADD, typed(at, max_epsilon="0.001")).text)
    assert "waits for a person weekly: above the ε of the rule" in shown
    budget = text_of(at).replace("epsilon = 10\ndelta = 1e-6", "epsilon = 0.01\ndelta = 1e-6")
    assert budget != text_of(at)
    at.scene.desk.home.policy_path.write_text(budget, encoding="utf-8")
    at.look_again()
    assert "approved without asking you" not in words_of(at.send(ADD, typed(at)).text)


def test_what_somebody_has_answered_is_not_listed(at: PageScene) -> None:
    decline(at.scene.desk, at.scene.address, "no")
    at.look_again()
    assert "No request waits for an answer now." in words_of(at.send(ADD, typed(at)).text)


def test_a_rule_without_its_records_can_be_removed(at: PageScene) -> None:
    """Such a rule makes the policy invalid, and nothing is joined."""
    before, words = text_of(at), fingerprint_words(at.scene.parties.user.public.ed25519)
    rule = rule_for(f"words = '{words}'", source="'gone'")
    at.scene.desk.home.policy_path.write_text(before + rule, encoding="utf-8")
    at.look_again()
    shown = at.send(REMOVE, at.form(RULES, REMOVE))
    assert "The policy cannot be used as it is" in shown.text
    assert at.send(REMOVE, form_in(at, shown.text, REMOVE)).status_code == 303
    assert text_of(at).rstrip() == before.rstrip()


def test_a_rule_that_is_gone_cannot_be_removed(at: PageScene) -> None:
    answer = at.send(REMOVE, at.form(RULES, ADD) | {"rule": "weekly"})
    assert answer.status_code == 400
    assert "no such rule" in answer.text
