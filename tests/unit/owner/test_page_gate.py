"""Who gets into the agent's page, and with which requests."""

import stat
from typing import Any

import httpx
import pytest
from page_scene import ADDRESS, FROM_HERE, PageScene

from dpdpca_owner.page.app import HEADERS
from dpdpca_owner.page.gate import SESSION_SECONDS, Gate, StartLink, read_link
from dpdpca_protocol.errors import NotFoundError

PATHS = ("/", "/studies", "/ledger", "/words", "/policy")
OWN = {"Origin": ADDRESS}


def token_of(url: str) -> str:
    return url.partition("token=")[2]


def is_strict(answer: httpx.Response) -> bool:
    return all(answer.headers.get(name) == value for name, value in HEADERS.items())


def test_the_link_is_exchanged_for_a_cookie_and_works_once(page: PageScene) -> None:
    url = page.link.url
    answer = page.stranger.get(url)
    assert page.target(answer) == "/"
    assert token_of(url) not in answer.text + str(answer.headers)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f"Path={page.gate.root}" in cookie
    assert len(page.gate.root) > 16
    assert page.stranger.get("/").status_code == 200
    assert page.new_browser().get(url).status_code == 401
    assert page.link.url != url


def test_links_sessions_forms_and_paths_differ(page: PageScene) -> None:
    links, cookies = [page.link.url], []
    for _ in range(3):
        cookies.append(page.new_browser().get(page.link.url).headers["set-cookie"].partition(";")[0])
        links.append(page.link.url)
    sessions = page.gate._sessions.values()
    assert len(set(links)) == len(links)
    assert len(set(cookies)) == len(cookies)
    assert len({session.form_token for session in sessions}) == len(sessions) > 3
    assert Gate(page.link).root != page.gate.root


def test_another_server_of_this_machine_cannot_replace_the_cookie(page: PageScene) -> None:
    """Browsers send a cookie that another port has set for all paths, after ours."""
    (cookie,) = page.browser.cookies.jar
    (other,) = PageScene(page.scene, page.link_path).browser.cookies.jar
    assert cookie.name != other.name
    sent = f"{cookie.name}={cookie.value}; dpdpca-owner=x; {other.name}={other.value}"
    assert page.stranger.get("/", headers={"Cookie": sent}).status_code == 200


def test_another_token_opens_nothing(page: PageScene) -> None:
    present = page.link.url
    for token in ("", "x", "é" * 40, "A" * 10_000):
        answer = page.stranger.get(f"{ADDRESS}/start", params={"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert page.link.url == present


def test_without_a_session_nothing_is_shown(page: PageScene) -> None:
    for path in (*PATHS, page.study_path, f"/studies/{page.study_path[10:]}/components.npz"):
        answer = page.stranger.get(path)
        assert answer.status_code == 401
        assert "Hospital A" not in answer.text
        assert "Blood" not in answer.text
        assert "dpdpca owner serve --link" in answer.text
    page.stranger.cookies.set(next(iter(page.browser.cookies)), "guess")
    assert page.stranger.get("/").status_code == 401


def test_a_session_ends(page: PageScene) -> None:
    page.seconds = SESSION_SECONDS - 1
    assert page.browser.get("/policy").status_code == 200
    page.seconds = SESSION_SECONDS
    assert page.browser.get("/policy").status_code == 401


def test_the_link_is_kept_in_a_private_file_until_the_agent_ends(page: PageScene) -> None:
    assert read_link(page.link_path, is_agent_running=True) == page.link.url
    assert stat.S_IMODE(page.link_path.stat().st_mode) == 0o600
    assert token_of(page.link.url) not in repr(page.link) + repr(page.gate) + repr(page.office)
    with pytest.raises(NotFoundError):
        read_link(page.link_path, is_agent_running=False)  # it was killed, and the file has stayed
    page.link.close()
    with pytest.raises(NotFoundError):
        read_link(page.link_path, is_agent_running=True)
    assert len(token_of(StartLink(page.link_path, ADDRESS).url)) >= 43  # 256 bits


FOREIGN_HOSTS = (
    *(
        "evil.example",
        "evil.example:8460",
        "127.0.0.1.evil.example:8460",
        "localhost.:8460",
        "",
        "[::2]:8460",
    ),
    *("127.0.0.1@evil.example", "127.0.0.2", "0.0.0.0:8460"),
)


def test_a_name_that_is_not_of_this_machine_is_refused(page: PageScene) -> None:
    present = page.link.url
    for host in FOREIGN_HOSTS:
        for path in ("/", "/page.css", page.link.url):
            answer = page.browser.get(path, headers={"Host": host})
            assert answer.status_code == 421, host
            assert is_strict(answer)
    assert page.link.url == present


def test_any_name_and_port_of_this_machine_will_do(page: PageScene) -> None:
    """An SSH tunnel may end at another port."""
    for host in ("127.0.0.1:8460", "localhost:9000", "[::1]:8460", "LOCALHOST"):
        assert page.browser.get("/page.css", headers={"Host": host}).status_code == 200, host


FOREIGN_FORMS: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    OWN | {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "https://127.0.0.1:8460"},
)


def test_a_form_from_elsewhere_changes_nothing(page: PageScene) -> None:
    form, before = (
        page.form(page.study_path, f"{page.study_path}/approve"),
        page.scene.desk.home.followed.all(),
    )
    for headers in FOREIGN_FORMS:
        answer = page.browser.post(f"{page.study_path}/approve", data=form, headers=headers)
        assert answer.status_code == 403, headers
        assert is_strict(answer)
    assert page.scene.desk.home.followed.all() == before


def test_a_form_of_ours_is_taken(page: PageScene) -> None:
    form = page.form("/policy", "/policy/change")
    for headers in (FROM_HERE, OWN, OWN | FROM_HERE, {"Origin": "null"} | FROM_HERE):
        assert page.browser.post("/policy/change", data=form, headers=headers).status_code == 200, headers


def test_a_form_needs_the_token_of_its_session(page: PageScene) -> None:
    form: dict[str, Any] = page.form("/policy", "/policy/change")
    (own,) = form.pop("form_token")
    page.stranger.get(page.link.url)
    theirs = page.stranger.get("/policy").text.partition('name="form_token" value="')[2].partition('"')[0]
    assert theirs != own
    for tokens in ([], [""], ["x"], ["é"], [theirs], [own, own], [own, "x"]):
        answer = page.send("/policy/change", form | {"form_token": tokens})
        assert answer.status_code in (400, 403), tokens


def test_only_small_forms_are_read(page: PageScene) -> None:
    form = page.form("/policy", "/policy/change")
    many = form | {f"x{index}": "1" for index in range(600)}
    assert page.send("/policy/change", many).status_code == 413
    assert page.send("/policy/change", form | {"dataset": "x" * 300_000}).status_code == 413
    assert page.send("/policy/change", form, Content_Type="application/json").status_code == 415
    assert page.send("/policy/change", form, Content_Type="text/plain").status_code == 415
    raw = page.browser.post(
        "/policy/change",
        content=b"form_token=\xff",
        headers=FROM_HERE | {"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert raw.status_code == 400


def test_no_other_method_is_answered(page: PageScene) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"):
        for path in (*PATHS, page.study_path, f"{ADDRESS}/start", f"{ADDRESS}/", "/page.css"):
            answer = page.browser.request(method, path, headers=FROM_HERE)
            assert answer.status_code == 405, (method, path)
            assert is_strict(answer)


def test_what_changes_something_is_no_get(page: PageScene) -> None:
    for action in ("/policy/change", "/words/compared", "approve", "dry-run"):
        path = action if action.startswith("/") else f"{page.study_path}/{action}"
        assert page.browser.get(path).status_code == 405


def test_every_answer_has_the_strict_headers(page: PageScene, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        page.browser.get(path) for path in (*PATHS, page.study_path, "/page.css", "/page.js", "/icon.svg")
    ]
    answers += [page.browser.get(path) for path in ("/nowhere", "/requests/x/y", "/requests/../x", "/start")]
    answers += [page.stranger.get("/"), page.browser.head("/policy")]
    assert all(map(is_strict, answers))
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    for part in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy

    def fail(*_: object) -> None:
        raise RuntimeError("a secret of the records")

    monkeypatch.setattr(type(page.office), "inbox", fail)
    failed = page.browser.get("/")
    assert failed.status_code == 500
    assert is_strict(failed)
    assert "a secret" not in failed.text
