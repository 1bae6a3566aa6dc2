"""The report parsed as HTML, which must be well formed."""

from html.parser import HTMLParser

PIECES = {"h3", "dt", "dd", "td", "th"}
VOID = {"meta", "br", "line", "rect", "path", "circle", "ellipse"}


class Page(HTMLParser):
    """A report.

    Attributes:
        values: what stands beside each name in a list of facts.
        rows: the cells of the rows of the tables in each section, headers included.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.values: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self._piece: list[str] = []
        self._name = self._section = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag in PIECES:
            self._piece = []
        if tag == "tr":
            self.rows.setdefault(self._section, []).append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        said = "".join(self._piece)
        if tag == "h3":
            self._section = said
        elif tag == "dt":
            self._name = said
        elif tag == "dd":
            self.values[self._name] = said
        elif tag in ("td", "th"):
            self.rows[self._section][-1].append(said)

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        self._piece.append(data)

    @property
    def drawings(self) -> list[str]:
        """The names of the figures, in their order."""
        return [value for _, name, value in self.attributes if name == "aria-label"]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())
