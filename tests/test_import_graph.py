"""What tests/import_graph.py finds: imports at any depth, for typing too, and what leads back."""

import pytest

from tests.import_graph import circles, imports


@pytest.mark.parametrize(
    "back",
    [
        "from planted.one import ONE",
        "from planted import one",
        "import planted.one",
        "from . import one",
        "from .one import ONE",
        "if TYPE_CHECKING:\n    from planted.one import ONE",
        "def late():\n    from planted.one import ONE",
    ],
)
def test_the_check_can_fail(tmp_path, back):
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").write_text("from planted.three import THREE\n")
    (package / "one.py").write_text("from planted.two import TWO\nONE = 1\n")
    (package / "two.py").write_text(f"{back}\nTWO = 2\n")
    (package / "three.py").write_text("from planted.one import ONE\nTHREE = 3\n")
    assert circles(imports(package)) == [["planted.one", "planted.two"]]


def test_what_only_leads_away_is_no_circle(tmp_path):
    package = tmp_path / "planted"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from .. import one\n")
    (package / "one.py").write_text("import json\n")
    assert imports(package) == {
        "planted": set(),
        "planted.inner": {"planted.one"},
        "planted.one": set(),
    }
