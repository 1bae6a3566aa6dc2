"""The requests on the agent's page: what is shown, and that only a person's own form approves."""

import threading
import time
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from following_scene import has_sent
from owner_scene import MakeScene
from page_scene import PageScene, words_of
from rule_texts import key_line, rule_for

from dpdpca_owner.actions import join, prepare_join, withdraw
from dpdpca_owner.agent import Agent
from dpdpca_owner.approving import approve_inbox
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.declining import decline
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.sources import RegisteredSource
from dpdpca_owner.upload import Watcher
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.words import fingerprint_words

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


def approvals(page: PageScene) -> list[FollowedStudy]:
    return page.scene.desk.home.followed.all()


def wait_until_read(page: PageScene) -> str:
    deadline = time.monotonic() + 60
    while "being read" in (text := page.show(page.study_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return text


def test_the_list_and_the_sheet_say_what_the_commands_say(page: PageScene) -> None:
    sheet = page.office.sheet(page.scene.address, None)
    listed = words_of(page.show("/"))
    for part in (sheet.manifest.title, sheet.manifest.purpose, "first contact", "waits for your decision"):
        assert part in listed
    shown = page.show(page.study_path)
    summary = sheet.summary()
    for text in (summary.leaves, summary.meaning, *summary.together):
        assert escape(text, quote=True).replace("&#x27;", "&#39;") in shown
    for heading, lines in page.office.sheet(page.scene.address, page.office.sources()[0]).sections():
        assert heading in shown
        assert all(line[1:20] in words_of(shown) for line in lines if "'" not in line[:20])


def test_an_approval_lets_the_agent_send_exactly_this_study(page: PageScene) -> None:
    home, address = page.scene.desk.home, page.scene.address
    form = page.form(page.study_path, f"{page.study_path}/approve")
    answer = page.send(f"{page.study_path}/approve", form)
    assert page.target(answer) == "/studies"
    assert approvals(page) == [FollowedStudy(address, "patients", "patients")]
    assert len(page.woken) == 1
    assert "approved" in page.show("/studies")
    assert not home.ledger.read().spends
    Agent(page.scene.desk, {}, watching=page.activity.watching, problems=page.problems).look()
    assert has_sent(home, address)
    progress = page.activity.progress(address.study)
    assert progress is not None
    assert progress.made == progress.total
    assert progress.sent_bytes >= page.office.sheet(address, None).sealed_bytes
    studies = page.show("/studies")
    assert "The proxy has the share" in studies
    page.look_again()
    assert "Approve this study" not in page.show(page.study_path)
    # The same form again approves nothing more.
    assert page.send(f"{page.study_path}/approve", form).status_code == 409


def test_reading_every_page_changes_nothing(page: PageScene) -> None:
    before = snapshot(page.scene.desk.home.path)
    paths = ["/", page.study_path, f"{page.study_path}?source=patients", "/studies", "/studies?part"]
    for path in (*paths, "/ledger", "/words", "/policy", "/policy?saved"):
        page.show(path)
    assert snapshot(page.scene.desk.home.path) == before
    assert {line.split()[0] for line in page.scene.proxy.received} == {"GET"}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    "change", ["policy", "source", "data set", "ledger", "compared", "declined", "forged"]
)
def test_what_changed_since_it_was_read_is_shown_again(page: PageScene, change: str) -> None:
    home, address = page.scene.desk.home, page.scene.address
    form = page.form(page.study_path, f"{page.study_path}/approve")
    if change == "policy":
        home.policy_path.write_text(home.policy_path.read_text() + "# read me\n")
    elif change == "source":
        home.sources.remove("patients")
        page.register(decimal=",")
    elif change == "data set":
        home.policy_path.write_text(home.policy_path.read_text().replace("# dataset", "dataset"))
    elif change == "ledger":
        prepared = prepare_join(page.scene.desk, address, page.scene.location, "patients")
        join(page.scene.desk, address, prepared, Watcher())
        withdraw(page.scene.desk, address)
    elif change == "compared":
        sheet = page.office.sheet(address, None)
        other = next(each for each in sheet.manifest.participants if each.name != "Hospital A")
        home.pins.trust_participant(sheet.study.proxy.identity.ed25519, other, "2026-01-01T00:00:00Z")
    elif change == "declined":
        decline(page.scene.desk, address, "the board says no")
    else:
        form["seen"] = ["0" * 64]
    answer = page.send(f"{page.study_path}/approve", form)
    assert answer.status_code == 409
    assert "something has changed since you read this sheet" in answer.text
    assert approvals(page) == []
    again = page.form(page.study_path, f"{page.study_path}/approve")
    assert page.send(f"{page.study_path}/approve", again).status_code == 303


def test_another_source_needs_its_own_sheet(page: PageScene) -> None:
    form = page.form(page.study_path, f"{page.study_path}/approve")
    page.register("others")
    assert page.send(f"{page.study_path}/approve", form | {"source": "others"}).status_code == 409
    assert page.send(f"{page.study_path}/approve", form | {"source": "nobody"}).status_code == 404
    assert page.send(f"{page.study_path}/approve", form | {"source": ""}).status_code == 404
    assert (
        page.send(f"{page.study_path}/approve", form | {"source": ["others", "patients"]}).status_code == 400
    )
    assert approvals(page) == []
    # With two sources, the person chooses first.
    assert "/approve" not in page.show(page.study_path)
    assert f"{page.study_path}/approve" in page.show(f"{page.study_path}?source=others")


@pytest.mark.parametrize("rule", ["max_epsilon = 10 ", "epsilon = 10\n"])
def test_what_the_policy_or_the_budget_refuses_cannot_be_approved(page: PageScene, rule: str) -> None:
    form = page.form(page.study_path, f"{page.study_path}/approve")
    policy = page.scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace(rule, rule.replace("10", "0.01")))
    page.look_again()
    assert "cannot be joined" in page.show("/")
    shown = page.show(page.study_path)
    assert "/approve" not in shown
    assert "This owner cannot join" in shown
    assert page.send(f"{page.study_path}/approve", form).status_code == 409
    sheet, source = page.office.sheet(page.scene.address, page.office.sources()[0]), page.office.sources()[0]
    from dpdpca_owner.page.requests import seen_digest

    form["seen"] = [seen_digest(page.office, sheet, source)]
    assert page.send(f"{page.study_path}/approve", form).status_code == 403
    assert approvals(page) == []


def test_a_dry_run_is_shown_and_decides_nothing(page: PageScene) -> None:
    data = Path(page.scene.location.data)
    header, *rows = data.read_text().splitlines()
    wild = ",".join(["nonsense"] + ["1e999"] * header.count(","))
    data.write_text("\n".join([header, *[wild] * 5, *rows]) + "\n")
    form = page.form(page.study_path, f"{page.study_path}/dry-run")
    answer = page.send(f"{page.study_path}/dry-run", form)
    assert answer.status_code == 303
    shown = words_of(wait_until_read(page))
    assert f"{len(rows) + 5} records were read" in shown
    assert "5 (11.1%)" in shown
    assert not page.scene.desk.home.followed.all()
    assert {line.split()[0] for line in page.scene.proxy.received} == {"GET"}
    approve = page.form(page.study_path, f"{page.study_path}/approve")
    assert page.send(f"{page.study_path}/approve", approve).status_code == 303


def test_a_dry_run_that_fails_does_not_block_the_form(page: PageScene) -> None:
    Path(page.scene.location.data).write_text("nothing\n1\n")
    page.send(f"{page.study_path}/dry-run", page.form(page.study_path, f"{page.study_path}/dry-run"))
    assert "The dry run could not be made" in wait_until_read(page)
    assert f"{page.study_path}/approve" in page.show(page.study_path)


def test_a_form_with_a_field_twice_is_refused(page: PageScene) -> None:
    form: dict[str, Any] = page.form(page.study_path, f"{page.study_path}/dry-run")
    answer = page.send(f"{page.study_path}/dry-run", form | {"source": ["patients", "patients"]})
    assert answer.status_code == 400
    assert "several fields" in answer.text
    assert page.send(f"{page.study_path}/dry-run", form).status_code == 303


def test_one_dry_run_at_a_time_and_other_pages_meanwhile(
    page: PageScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.register("others")
    may_end, read = threading.Event(), page.office.read_records

    def slowly(address: StudyAddress, source: RegisteredSource) -> ConsentSheet:
        may_end.wait(60)
        return read(address, source)

    monkeypatch.setattr(page.office, "read_records", slowly)
    action = f"{page.study_path}/dry-run"
    first, second = (page.form(f"{page.study_path}?source={name}", action) for name in ("patients", "others"))
    assert page.send(action, first).status_code == 303
    assert page.send(action, first).status_code == 303  # the same one goes on
    assert page.send(action, second).status_code == 409
    for path in ("/", "/ledger", "/policy", f"{page.study_path}?source=patients"):
        page.show(path)
    assert "being read" in page.show(f"{page.study_path}?source=patients")
    may_end.set()
    deadline = time.monotonic() + 60
    while "records were read" not in page.show(f"{page.study_path}?source=patients"):
        assert time.monotonic() < deadline
    assert page.send(action, second).status_code == 303


def test_texts_of_others_are_shown_as_text(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(title=f"T {HOSTILE}", purpose=f"P {HOSTILE}")
    page = PageScene(scene, tmp_path / "link.json")
    page.register()
    page.problems[scene.address] = HOSTILE
    page.activity.note(HOSTILE)
    scene.desk.home.followed.add(FollowedStudy(scene.address, "patients", "patients"))
    for path in ("/", page.study_path, "/studies", "/words", "/policy"):
        shown = page.show(path)
        assert "<script>" not in shown
        assert "<img src=x" not in shown
    assert "&lt;script&gt;alert(1)" in page.show("/studies")
    assert "P &lt;script&gt;" in page.show("/")


def test_words_are_compared_by_an_act_and_only_as_shown(page: PageScene) -> None:
    participants = page.office.sheet(page.scene.address, None).manifest.participants
    other = next(each for each in participants if each.name == "Hospital B")
    assert fingerprint_words(other.ed25519) in page.show("/words")
    form = {name: values[:1] for name, values in page.form("/words", "/words/compared").items()}
    assert form["name"] == ["Hospital B"]
    assert page.send("/words/compared", form).status_code == 400  # the box is not ticked
    ticked = form | {"heard": "yes"}
    assert page.send("/words/compared", ticked | {"words": "twelve other words"}).status_code == 401
    assert page.send("/words/compared", ticked | {"name": "Hospital C"}).status_code == 401
    assert page.send("/words/compared", ticked | {"study": "x/y"}).status_code == 404
    page.look_again()
    assert words_of(page.show("/words")).count("not compared") == 2
    assert page.send("/words/compared", ticked).status_code == 303
    assert words_of(page.show("/words")).count("not compared") == 1
    assert page.office.sheet(page.scene.address, None).study.compared == {other.ed25519}


def test_a_request_is_declined_with_a_message_and_may_still_be_approved(page: PageScene) -> None:
    home, address, action = page.scene.desk.home, page.scene.address, f"{page.study_path}/decline"
    form = page.form(page.study_path, action)
    assert page.send(action, form | {"why": "x" * 501}).status_code == 400
    assert home.study(address.study).declined() is None
    assert page.target(page.send(action, form | {"why": f" {HOSTILE} "})) == "/"
    declined = home.study(address.study).declined()
    assert declined is not None
    assert (declined.why, declined.is_told) == (HOSTILE, True)
    assert not home.ledger.read().spends
    assert "declined" in words_of(page.show("/"))
    assert HOSTILE not in page.show(page.study_path)
    approve = page.form(page.study_path, f"{page.study_path}/approve")
    assert page.send(f"{page.study_path}/approve", approve).status_code == 303
    assert home.study(address.study).declined() is None
    assert len(approvals(page)) == 1


def test_new_keys_of_this_owner_are_used(page: PageScene) -> None:
    other = page.scene.parties.owners[1]
    new = replace(page.scene.desk.owner, name="Hospital Z", key=other)
    page.office.owner = lambda: new
    assert fingerprint_words(other.public.ed25519) in page.show("/words")


def test_a_study_that_a_rule_approved_is_not_shown_as_the_persons_decision(page: PageScene) -> None:
    page.register()
    rule = rule_for(key_line(page.scene.parties.user.public.ed25519), name="'weekly <1>'")
    page.scene.desk.home.policy_path.write_text("[study]\nmax_delta = 1e-4\nmin_owners = 2\n" + rule)
    (approved,) = approve_inbox(page.scene.desk, lambda place, problem: None)
    assert approved.rule == "weekly <1>"
    for path in ("/", page.study_path):
        shown = page.show(path)
        assert "our rule ‘weekly &lt;1&gt;’" in shown
        assert "You approved this study" not in shown
