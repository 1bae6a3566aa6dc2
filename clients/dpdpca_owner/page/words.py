"""Other parties' words: to compare by telephone, and to note that they were compared."""

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.actions import trust
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.page.gate import Form, field
from dpdpca_owner.page.office import Office, path_of
from dpdpca_owner.page.render import day_of, go_to, page
from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.http.address import parse_study_address
from dpdpca_runtime.words import fingerprint_words


@dataclass(frozen=True, slots=True)
class Known:
    """A party with its words.

    Attributes:
        met: since when this owner knows it, in words.
        study: the path of an open study that names it, if this owner may still note a comparison.
        title: of that study.
    """

    name: str
    words: str
    met: str
    is_compared: bool = False
    study: str | None = None
    title: str | None = None


def show_words(office: Office, request: Request) -> Response:
    home, own = office.desk.home, office.desk.owner
    proxies = [
        Known(card.name, fingerprint_words(card.identity.ed25519), f"at {url}")
        for url in home.pins.proxy_urls()
        for card in (home.pins.proxy(url),)
    ]
    sheets = [each.sheet for each in office.inbox()[1].requests]
    return page(
        "words",
        request,
        own=own,
        proxies=proxies,
        users=_once(_user(sheet) for sheet in sheets),
        owners=_once(known for sheet in sheets for known in _owners(sheet)),
    )


def note_compared(office: Office, request: Request, form: Form) -> Response:
    """Note that a person compared the words that the page showed. Refused if the study names others now."""
    if field(form, "heard") != "yes":
        raise UsageError(
            "not-compared",
            "nothing was noted, because the box was not ticked",
            "call the other owner, compare all twelve words, then tick the box",
        )
    proxy, _, study = field(form, "study").partition("/")
    trust(office.desk, office.address(proxy, study), field(form, "name"), field(form, "words"))
    office.forget_inbox()
    return go_to(request, "/words")


def _user(sheet: ConsentSheet) -> Known:
    user = sheet.manifest.user
    return Known(user.name, fingerprint_words(user.ed25519), _met(sheet.study.user_since))


def _owners(sheet: ConsentSheet) -> list[Known]:
    address, study = parse_study_address(sheet.address), sheet.study
    own = sheet.owner.key.public.ed25519
    found = []
    for each in sheet.manifest.participants:
        if each.ed25519 != own:
            met = _met(study.owners_since.get(each.ed25519))
            is_compared = each.ed25519 in study.compared
            words = fingerprint_words(each.ed25519)
            found.append(Known(each.name, words, met, is_compared, path_of(address), sheet.manifest.title))
    return found


def _met(since: str | None) -> str:
    return "not met before" if since is None else f"known since {day_of(since)}"


def _once(parties: Iterable[Known]) -> list[Known]:
    """Each party once, by its name and words."""
    return list({(each.name, each.words): each for each in parties}.values())
