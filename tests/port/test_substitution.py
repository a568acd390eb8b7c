"""Changes of a template's text."""

from __future__ import annotations

import pytest

from migrate.port import texts
from migrate.port.substitution import substitute


def test_all_changes_are_made_in_order() -> None:
    assert substitute("a b", {"a": "c", "c b": "d"}) == "d"


def test_a_change_that_the_template_does_not_contain_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^the template does not contain 'gone\\n'$"):
        substitute("a b", {"a": "c", "gone\n": ""})


def test_a_package_whose_template_lacks_a_change_of_stacked_layers_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = texts._PACKAGE.replace("    return variables\n", "    return nested\n")
    monkeypatch.setattr(texts, "_PACKAGE", template)
    with pytest.raises(ValueError, match="return variables"):
        texts.package_text("Net", "NetConfig", "Net", {}, scanned=True)
