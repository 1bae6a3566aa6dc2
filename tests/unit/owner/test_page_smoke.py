from owner_scene import MakeScene
from page_scene import PageScene
from pathlib import Path

def test_smoke(make_scene: MakeScene, tmp_path: Path) -> None:
    page = PageScene(make_scene(), tmp_path / "link.json")
    page.register()
    for path in ("/", page.study_path, "/studies", "/ledger", "/words", "/policy"):
        text = page.show(path)
        (tmp_path / "x").mkdir(exist_ok=True)
    form = page.form(page.study_path, f"{page.study_path}/dry-run")
    print(form)
    a = page.send(f"{page.study_path}/dry-run", form)
    assert a.status_code == 303
    import time
    time.sleep(1)
    t = page.show(page.study_path)
    assert "records were read" in t
    f = page.form("/policy", "/policy/change")
    print(f)
    f["max_epsilon"] = ["0.001"]
    a = page.send("/policy/change", f | {"act": "show"})
    print(a.text)
    assert a.status_code == 200
    f = page.form(page.study_path, f"{page.study_path}/approve")
    a = page.send(f"{page.study_path}/approve", f)
    assert a.status_code == 303, a.text
